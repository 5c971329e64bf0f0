"""Texts to speak: own templates, and the example sentences and definitions of WordNet.

    python texts.py --wordnet /usr/share/wordnet --scowl /usr/share/dict/scowl --out DIR

writes train.txt and valid.txt (disjoint by text, chosen by hash), one text a line, shuffled, so
that any head of the file is a fair sample. Sources and their licences are in README.md.
"""

import argparse
import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
SLOT = re.compile(r"\{(\w+)\}")
VALID_SHARE = 150  # one text in so many is held out
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["_", "_", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SIZES = {"everyday": 84_000, "question": 28_000, "number": 64_000, "word": 26_000, "common": 44_000}
GLOSSES = 20_000
TAXONOMY = re.compile(r"\b(genus|family|order|species|genera|native|perennial|shrub|trees?)\b")


def ordinal(n: int) -> str:
    suffix = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def number_words(n: int) -> str:
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{ONES[n // 100]} hundred" + (f" and {number_words(n % 100)}" if n % 100 else "")
    return f"{number_words(n // 1000)} thousand" + (
        f" {number_words(n % 1000)}" if n % 1000 else ""
    )


def a_number(r: random.Random) -> int:
    """Any count up to 999, small ones more often; every tens-and-ones pair is common."""
    return r.choice((r.randint(2, 20), r.randint(10, 99), r.randint(20, 99), r.randint(100, 999)))


def a_price(r: random.Random) -> str:
    cents = r.choice((".99", ".50", ".95", ".25", f".{r.randint(10, 99)}"))
    return r.choice(
        (
            f"${r.randint(2, 99)}{cents}",
            f"${r.randint(2, 999)}",
            f"${r.randint(2, 99)}",
            f"${r.randint(1, 9)},{r.randint(100, 999)}",
            f"{r.randint(2, 99)} dollars",
            f"{r.randint(2, 99)} cents",
            f"{r.randint(2, 99)} euros",
            f"£{r.randint(2, 99)}",
            f"${r.randint(2, 40)} million",
        )
    )


def a_time(r: random.Random) -> str:
    hour = r.randint(1, 12)
    clock = (
        f"{hour}:{r.choice((0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, r.randint(1, 59))):02}"
    )
    return r.choice(
        (
            clock,
            clock,
            f"{clock} {r.choice(('am', 'pm', 'a.m.', 'p.m.', 'AM', 'PM'))}",
            f"{hour} {r.choice(('am', 'pm'))}",
            f"{hour} o'clock",
            f"{r.choice(('half', 'a quarter', 'ten', 'five', 'twenty'))} past {ONES[hour]}",
            f"a quarter to {ONES[hour]}",
        )
    )


def a_date(r: random.Random) -> str:
    month, day = r.choice(MONTHS), r.randint(1, 28)
    return r.choice((f"{month} {day}", f"{month} {ordinal(day)}", f"the {ordinal(day)} of {month}"))


def a_year(r: random.Random) -> str:
    return str(r.choice((r.randint(1900, 1999), r.randint(2000, 2030), r.randint(1500, 1899))))


def some_digits(r: random.Random) -> str:
    return r.choice((" ", " ", ", ")).join(str(r.randint(0, 9)) for _ in range(r.randint(1, 8)))


def a_count(r: random.Random) -> str:
    start, step = r.randint(0, 20), r.choice((1, 1, 1, 2, 5, 10))
    return ", ".join(str(start + i * step) for i in range(r.randint(3, 6)))


GENERATED: dict[str, Callable[[random.Random], str]] = {
    "int": lambda r: str(a_number(r)),
    "small": lambda r: str(r.randint(1, 20)),
    "sum": lambda r: str(r.randint(3, 40)),
    "age": lambda r: str(r.randint(2, 99)),
    "room": lambda r: str(r.choice((r.randint(1, 99), r.randint(100, 999), r.randint(1000, 9999)))),
    "bigint": lambda r: r.choice(
        (
            f"{r.randint(1, 99)},{r.randint(0, 9)}00",
            f"{r.randint(1, 9)},{r.randint(100, 999)}",
            f"{r.randint(2, 900)},000",
            f"{r.randint(2, 90)} million",
        )
    ),
    "price": a_price,
    "time": a_time,
    "date": a_date,
    "year": a_year,
    "month": lambda r: r.choice(MONTHS),
    "weekday": lambda r: r.choice(WEEKDAYS),
    "ordinal": lambda r: ordinal(r.choice((r.randint(1, 31), r.randint(1, 99)))),
    "percent": lambda r: f"{r.randint(1, 100)}{r.choice(('%', ' percent'))}",
    "decimal": lambda r: f"{r.randint(0, 99)}.{r.randint(1, 99)}",
    "digits": some_digits,
    "digitwords": lambda r: " ".join(r.choice(ONES[:10]) for _ in range(r.randint(1, 7))),
    "countlist": a_count,
    "phone": lambda r: f"555-{r.randint(1000, 9999)}",
    "numwords": lambda r: number_words(r.choice((a_number(r), r.randint(1, 9999)))),
    "half": lambda r: r.choice(("Half", "A third", "A quarter", "Two thirds", "One in ten")),
    "half1": lambda r: r.choice(("half", "a third", "a quarter")),
    "letter": lambda r: r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}


class Dictionary:
    """Common words by part of speech: WordNet says which, SCOWL says how common."""

    def __init__(self, wordnet: Path, scowl: Path) -> None:
        self.common = self._scowl(scowl, "10", "20")
        self.usual = sorted(w for w in self._scowl(scowl, "10") if len(w) > 1)
        self.medium = self._scowl(scowl, "35") - self.common
        self.rare = self._scowl(scowl, "40", "50") - self.common - self.medium
        self.proper = sorted(w for w in self._upper(scowl) if w.isalpha() and w.isascii())
        tags = self._tags(wordnet)
        self.nouns = self._split(tags["n"])
        self.verbs = self._split(tags["v"])
        self.adjectives = self._split(tags["a"])
        words = (self.common, self.medium, self.rare)
        self.all = [sorted(w for w in part if w.isalpha() and len(w) > 2) for part in words]

    @staticmethod
    def _scowl(folder: Path, *levels: str) -> set[str]:
        files = [folder / f"{kind}-words.{n}" for n in levels for kind in ("english", "american")]
        text = "\n".join(f.read_text("latin-1") for f in files if f.exists())
        return {w for w in text.split("\n") if w.isascii() and w.isalpha()}

    @staticmethod
    def _upper(folder: Path) -> set[str]:
        names = ("english-upper.35", "english-upper.40", "english-proper-names.50")
        text = "\n".join((folder / n).read_text("latin-1") for n in names)
        return set(text.split("\n"))

    @staticmethod
    def _tags(wordnet: Path) -> dict[str, Counter[str]]:
        """How often a lemma was tagged with each part of speech in WordNet's concordances."""
        tags: dict[str, Counter[str]] = {p: Counter() for p in "nva"}
        parts = {"1": "n", "2": "v", "3": "a", "5": "a"}
        for line in (wordnet / "cntlist.rev").read_text("latin-1").splitlines():
            key, _, count = line.split()
            lemma, sense = key.split("%")
            if sense[0] in parts:
                tags[parts[sense[0]]][lemma] += int(count)
        return tags

    def _split(self, counts: Counter[str]) -> tuple[list[str], list[str]]:
        fit = [w for w, n in sorted(counts.items()) if n >= 1 and len(w) > 2]
        return [w for w in fit if w in self.common], [w for w in fit if w in self.medium]

    def draw(self, r: random.Random, lists: tuple[list[str], list[str]]) -> str:
        return r.choice(lists[0] if r.random() < 0.85 else lists[1])

    def any(self, r: random.Random) -> str:
        return r.choice(r.choices(self.all, (5, 5, 2))[0])


def plural(noun: str) -> str:
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


class Templates:
    """Sentences from templates.txt, their slots filled at random."""

    def __init__(self, path: Path, dictionary: Dictionary) -> None:
        self.words: dict[str, list[str]] = {}
        self.sections: dict[str, list[str]] = {}
        self.dictionary = dictionary
        section: list[str] = []
        for line in path.read_text().splitlines():
            if line.startswith("@"):
                slot, words = line[1:].split(":", 1)
                self.words[slot] = [w.strip() for w in words.split(", ")]
            elif line.startswith("!"):
                section = self.sections.setdefault(line.split()[1], [])
            elif line and not line.startswith("#"):
                section.append(line)

    def slot(self, r: random.Random, name: str) -> str:
        d = self.dictionary
        if name.endswith("1") and name not in GENERATED:
            return self.slot(r, name[:-1]).capitalize()
        if name in GENERATED:
            return GENERATED[name](r)
        made = {
            "noun": lambda: d.draw(r, d.nouns),
            "nouns": lambda: plural(d.draw(r, d.nouns)),
            "verb": lambda: d.draw(r, d.verbs),
            "verbs": lambda: plural(d.draw(r, d.verbs)),
            "adjective": lambda: d.draw(r, d.adjectives),
            "any": lambda: d.any(r),
            "common": lambda: r.choice(d.usual if r.random() < 0.65 else d.all[0]),
            "proper": lambda: r.choice(d.proper),
        }
        return made[name]() if name in made else r.choice(self.words[name])

    def fill(self, r: random.Random, text: str) -> str:
        while SLOT.search(text):
            text = SLOT.sub(lambda m: self.slot(r, m[1]), text)
        text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
        return text[0].upper() + text[1:]

    def sample(self, r: random.Random, section: str, n: int) -> Iterator[str]:
        for _ in range(n):
            yield self.fill(r, r.choice(self.sections[section]))


def wordnet_lines(folder: Path) -> tuple[list[str], list[str]]:
    """(example sentences, definitions) that are plain enough to read aloud."""
    examples, glosses = [], []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text("latin-1").splitlines():
            if " | " not in line:
                continue
            gloss = line.split(" | ", 1)[1]
            examples += re.findall(r'"([^"]*)"', gloss)
            plain = re.sub(r'"[^"]*"|\([^)]*\)', "", gloss)
            glosses += [re.sub(r"\s+", " ", g).strip(" ,") for g in plain.split(";")]
    fit = re.compile(r"[A-Za-z][A-Za-z0-9 ,.'!?$%:-]*")
    return (
        [t.strip() for t in examples if fit.fullmatch(t.strip()) and 4 <= len(t) <= 150],
        [t for t in glosses if fit.fullmatch(t) and 8 <= len(t) <= 120 and not TAXONOMY.search(t)],
    )


def finished(r: random.Random, text: str) -> str:
    """Mostly a capital letter and a full stop; sometimes as careless as real input."""
    if r.random() < 0.9:
        text = text[0].upper() + text[1:]
    if text[-1] not in ".!?" and r.random() < 0.88:
        text += r.choice((".",) * 12 + ("!", "?"))
    return text


def joined(r: random.Random, pool: list[str], n: int) -> Iterator[str]:
    """Short paragraphs, so that longer requests are not new to the model."""
    whole = [t for t in pool if t[-1] in ".!?" and t[0].isupper() and len(t) < 110]
    for _ in range(n):
        yield " ".join(r.sample(whole, r.choice((2, 2, 2, 3, 3, 4))))


def key(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9']+", text.lower()))


def held_out(text: str) -> bool:
    return int(hashlib.sha256(key(text).encode()).hexdigest(), 16) % VALID_SHARE == 0


def spoken_elsewhere() -> set[str]:
    """The hand-written judging sentences, which must never be trained on."""
    files = sorted((HERE / "judge").glob("*.txt"))
    return {key(line) for f in files for line in f.read_text().splitlines()}


def build(wordnet: Path, scowl: Path, seed: int) -> tuple[list[str], list[str]]:
    r = random.Random(seed)
    templates = Templates(HERE / "templates.txt", Dictionary(wordnet, scowl))
    singles = [t for name, n in SIZES.items() for t in templates.sample(r, name, n)]
    examples, glosses = wordnet_lines(wordnet)
    singles += [finished(r, t) for t in examples + r.sample(glosses, GLOSSES)]
    banned = spoken_elsewhere()
    singles = [t for t in dict.fromkeys(singles) if key(t) and key(t) not in banned]
    train = [t for t in singles if not held_out(t)]
    train += list(joined(r, train, len(train) // 10))
    # Set phrases are few, so they are kept in training whole and said often.
    train += templates.words["short"] * 12
    valid = [t for t in singles if held_out(t)]
    r.shuffle(train)
    r.shuffle(valid)
    return train, valid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--scowl", type=Path, default=Path("/usr/share/dict/scowl"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, texts in zip(
        ("train", "valid"), build(args.wordnet, args.scowl, args.seed), strict=True
    ):
        (args.out / f"{name}.txt").write_text("\n".join(texts) + "\n")
        print(
            f"{name}: {len(texts)} texts, {sum(map(len, texts)) / 15 / 3600:.0f} h at 15 letters/s"
        )


if __name__ == "__main__":
    main()
