#!/bin/bash
# One timed run on a machine with one or two CUDA cards: speech, quantiser, codes, decoder and
# language model at the same time.
#   run.sh TEXTS TOKENIZER OUT SECONDS [BEFORE]
# TEXTS holds train.txt and valid.txt. With BEFORE (the OUT of an earlier run) its codec is kept,
# and all cards go on with its language model, on speech that is made anew.
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
$second $python codec.py encode --speech "$work/valid" --codec "$out" --out "$work/valid_codes" &
$second $python codec.py encode --speech "$work/speech" --codec "$out" --out "$work/codes" &
language_model() {
    $python lm.py --texts "$texts/train.txt" --codes "$work/codes" \
        --valid-texts "$texts/valid.txt" --valid-codes "$work/valid_codes" \
        --tokenizer "$tokenizer" --out "$out" --wait "${WAIT:-60}" --deadline $((end - 10)) \
        ${LM_FLAGS---compile} "$@"
}
if [ -z "$before" ]; then
    $first $python codec.py quantise --speech "$work/speech" --out "$out" \
        --seconds "${QUANTISE:-60}" ${QUANTISE_FLAGS:-} &
    $first $python codec.py decode --speech "$work/speech" --codes "$work/codes" --codec "$out" \
        --out "$out" --deadline $((end - 15)) ${DECODE_FLAGS---compile} &
    CUDA_VISIBLE_DEVICES=$((cards > 1 ? 1 : 0)) language_model &
else
    cp "$before/coder.pt" "$before/decoder.pt" "$out/"
    export WORLD_SIZE=$((cards > 1 ? cards : 1)) MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
    for rank in $(seq 0 $((WORLD_SIZE - 1))); do
        RANK=$rank language_model --start "$before/lm.pt" &
    done
fi
wait
rm -f "$out"/part_*
echo "run: $(($(date +%s) - start)) s"
