#!/bin/bash
# One timed run on a machine with one or two CUDA cards: speech, quantiser, codes, decoder and
# language model at the same time.
#   run.sh TEXTS TOKENIZER OUT SECONDS [BEFORE]
# TEXTS holds train.txt and valid.txt. With BEFORE (the OUT of an earlier run) its quantiser is
# kept and decoder and language model go on from its weights, on speech that is made anew.
set -u
texts=$1 tokenizer=$2 out=$3 seconds=$4 before=${5:-}
here=$(cd "$(dirname "$0")" && pwd)
work=${WORK:-/tmp/voice} python=${PYTHON:-python3}
start=$(date +%s)
end=$((start + seconds))
cards=$(nvidia-smi -L 2>/dev/null | wc -l)
workers=${WORKERS:-$(($(nproc) - 5))}
first="env CUDA_VISIBLE_DEVICES=0" second="env CUDA_VISIBLE_DEVICES=$((cards > 1 ? 1 : 0))"
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=true PYTHONUNBUFFERED=1
mkdir -p "$out" "$work/codes" "$work/valid_codes"
cd "$here" || exit 1
echo "run: $cards cards, $workers speech workers"

$python speech.py --texts "$texts/valid.txt" --out "$work/valid" --workers 4 --limit "${VALID:-700}" &&
    $python speech.py --texts "$texts/train.txt" --out "$work/speech" --workers "$workers" \
        --seconds $((seconds * ${SPEECH_SHARE:-75} / 100)) --seed "${SEED:-0}" &
if [ -n "$before" ]; then
    cp "$before/coder.pt" "$out/"
else
    $first $python codec.py quantise --speech "$work/speech" --out "$out" \
        --seconds "${QUANTISE:-60}" ${QUANTISE_FLAGS:-} &
fi
$second $python codec.py encode --speech "$work/valid" --codec "$out" --out "$work/valid_codes" &
$second $python codec.py encode --speech "$work/speech" --codec "$out" --out "$work/codes" &
$first $python codec.py decode --speech "$work/speech" --codes "$work/codes" --codec "$out" \
    --out "$out" --deadline $((end - 15)) ${before:+--start "$before/decoder.pt" --rate 5e-4} \
    ${DECODE_FLAGS---compile} &
$second $python lm.py --texts "$texts/train.txt" --codes "$work/codes" \
    --valid-texts "$texts/valid.txt" --valid-codes "$work/valid_codes" --tokenizer "$tokenizer" \
    --out "$out" --wait ${WAIT:-60} --deadline $((end - 10)) ${before:+--start "$before/lm.pt"} \
    ${LM_FLAGS---compile} &
wait
cp "$work"/valid_codes/codes_0[012]_0000.npz "$out/"
rm -f "$out"/part_*
echo "run: $(($(date +%s) - start)) s"
