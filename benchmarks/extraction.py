"""How sure a field is, and whether it is right: texts of three kinds that a generator wrote.

    python -m benchmarks.extraction texts FOLDER [--seed 1] [--count 200]
    entropix calibrate --fields FOLDER/invoice.labelled.jsonl --schema FOLDER/invoice.schema.json \
        --examples FOLDER/invoice.examples.jsonl --risk 0.05 -o FOLDER/invoice.toml     # and so on
    python -m benchmarks.extraction report FOLDER

`report` compares the confidence of a field with that of the whole answer: the AUROC for right
against wrong values within a field, weighted by pairs, with an interval over texts.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path

import numpy as np

from entropix_mlx.extraction.rows import row_of
from entropix_mlx.lab.calibration.fields import is_right
from entropix_mlx.lab.evaluation.statistics import auroc

FIRST = [
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Ewa",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Kofi",
    "Lena",
    "Marta",
    "Nils",
    "Olga",
    "Pavel",
    "Rosa",
    "Samir",
    "Tara",
    "Umar",
    "Vera",
    "Wei",
    "Yuki",
    "Zoe",
]
LAST = [
    "Holt",
    "Marsh",
    "Okafor",
    "Tanaka",
    "Lind",
    "Silva",
    "Novak",
    "Meyer",
    "Rossi",
    "Kumar",
    "Haas",
    "Dubois",
    "Jensen",
    "Costa",
    "Weber",
    "Kowalski",
    "Ivanov",
    "Santos",
    "Baker",
    "Nguyen",
]
FIRMS = ["{} Ltd", "{} & Sons", "{} Bakery", "{} Corp", "{} Logistics", "Studio {}", "{} GmbH"]
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
CITIES = [
    "Lisbon",
    "Oslo",
    "Vienna",
    "Dublin",
    "Prague",
    "Athens",
    "Zurich",
    "Bergen",
    "Porto",
    "Ghent",
    "Malmo",
    "Turin",
]
SIGNS = {"EUR": "€", "USD": "$", "GBP": "£"}
RESAMPLES = 1000
STRING, DATE = {"type": "string"}, {"type": "string", "format": "date"}
SCHEMAS = {
    "invoice": {
        "customer": STRING | {"description": "who pays"},
        "date": DATE,
        "total": {"type": "number", "description": "amount to pay"},
        "currency": {"enum": list(SIGNS)},
        "paid": {"type": "boolean", "description": "whether it is paid already"},
    },
    "booking": {
        "guest": STRING,
        "city": STRING,
        "arrival": DATE,
        "nights": {"type": "integer"},
        "room": {"enum": ["single", "double", "family"]},
    },
    "ticket": {
        "name": STRING | {"description": "who writes"},
        "product": STRING,
        "serial": STRING,
        "priority": {"enum": ["low", "normal", "urgent"]},
        "refund": {"type": "boolean", "description": "whether money is wanted back"},
    },
}


def person(r: random.Random) -> str:
    return f"{r.choice(FIRST)} {r.choice(LAST)}"


def day(r: random.Random) -> tuple[str, str]:
    """Return a date as the schema wants it, and as a text writes it."""
    y, m, d = r.randint(2019, 2026), r.randint(1, 12), r.randint(1, 28)
    month = MONTHS[m - 1]
    written = [f"{y}-{m:02}-{d:02}", f"{d} {month} {y}", f"{month} {d}, {y}", f"{d:02}.{m:02}.{y}"]
    return written[0], r.choice(written)


def aside(r: random.Random) -> str:
    """Return a sentence that no field asks about."""
    return r.choice(
        [
            "",
            f"Our reference: {r.randint(100, 9999)}-{r.choice('ABCD')}. ",
            f"Please quote customer number {r.randint(10000, 99999)}. ",
            "Our office is closed from 24 to 31 December. ",
            f"Contact: {person(r)}, phone {r.randint(200000, 999999)}. ",
        ]
    )


def invoice(r: random.Random) -> tuple[str, dict[str, object]]:
    iso, date = day(r)
    who = r.choice(FIRMS).format(r.choice(LAST)) if r.random() < 0.6 else person(r)
    total = r.choice([r.randint(5, 999), round(r.uniform(5, 2000), 2)])
    currency, paid = r.choice(list(SIGNS)), r.random() < 0.5
    money = r.choice([f"{total} {currency}", f"{SIGNS[currency]}{total}", f"{currency} {total}"])
    net = f"Net {total * 0.8:.2f} {currency}, VAT {total * 0.2:.2f} {currency}. "
    net = r.choice(["", net])
    texts = [
        f"Invoice to {who}, {date}. {aside(r)}{net}Please transfer {money} within 14 days.",
        f"Dear {who}, our invoice of {date} is {money}, payable within the month. {aside(r)}",
        f"{aside(r)}Reminder: {money} from our invoice dated {date} is open. {net}To: {who}.",
    ]
    if paid:
        texts = [
            f"Receipt. {aside(r)}Received from {who} on {date} the sum of {money}, thank you.",
            f"{aside(r)}Paid in full: {money}. {net}Customer: {who}. Date: {date}.",
        ]
    found = {"customer": who, "date": iso, "total": total, "currency": currency, "paid": paid}
    return r.choice(texts), found


def booking(r: random.Random) -> tuple[str, dict[str, object]]:
    iso, date = day(r)
    who, city, nights = person(r), r.choice(CITIES), r.randint(1, 6)
    kind = r.choice(["single", "double", "family"])
    words = {1: "one night", 2: "two nights", 3: "three nights"}
    digits = f"{nights} night{'s' * (nights > 1)}"
    stay = r.choice([digits, words.get(nights, digits)])
    room = f"a {kind} room"
    texts = [
        f"Hello, I would like {room} in {city} for {stay} from {date}. {aside(r)}Regards, {who}",
        f"{who} asks for {room}, arriving on {date}, staying {stay}. {aside(r)}Hotel: {city}.",
        f"{aside(r)}We come to {city} on {date} and stay {stay}; please keep {room}. {who}",
    ]
    found = {"guest": who, "city": city, "arrival": iso, "nights": nights, "room": kind}
    return r.choice(texts), found


def ticket(r: random.Random) -> tuple[str, dict[str, object]]:
    who, priority, refund = person(r), r.choice(["low", "normal", "urgent"]), r.random() < 0.5
    product = r.choice(["printer", "router", "camera", "kettle", "headset", "monitor"])
    serial = f"{r.choice('ABKX')}{r.randint(100, 999)}-{r.randint(10, 99)}"
    hurry = {
        "low": ["There is no hurry.", "Whenever you have time."],
        "normal": ["", "Please answer this week."],
        "urgent": ["We need this today!", "This stops our whole team, please hurry."],
    }[priority]
    wish = ["I want my money back.", "Please refund me."]
    if not refund:
        wish = ["Can you repair it?", "Please send a new one."]
    texts = [
        f"My {product} ({serial}) is broken. {r.choice(wish)} {r.choice(hurry)} {aside(r)}{who}",
        f"{aside(r)}{who} writes: {product} no. {serial} fails. {r.choice(hurry)} {r.choice(wish)}",
        f"Hello, {product} {serial} makes noise. {r.choice(wish)} {r.choice(hurry)} Thanks, {who}",
    ]
    return r.choice(texts), {
        "name": who, "product": product, "serial": serial, "priority": priority, "refund": refund,
    }  # fmt: skip


KINDS = {"invoice": invoice, "booking": booking, "ticket": ticket}


def write_texts(folder: Path, seed: int, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, make in KINDS.items():
        r = random.Random(f"{seed}:{kind}")
        properties = SCHEMAS[kind]
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        (folder / f"{kind}.schema.json").write_text(json.dumps(schema, indent=2))
        for name, lines in (("examples", 3), ("labelled", count)):
            with (folder / f"{kind}.{name}.jsonl").open("w") as file:
                for text, found in (make(r) for _ in range(lines)):
                    line = {"text": " ".join(text.split()), "fields": found}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")


def report(folder: Path) -> None:
    values = list(read_values(folder))
    by_field = defaultdict(list)
    for value in values:
        by_field[value[0]].append(value)
    print(f"{'field':18} {'right':>6} {'AUROC, field':>13} {'whole answer':>13}")
    for name, own in by_field.items():
        right = np.array([value[4] for value in own])
        aurocs = [auroc(np.array([value[n] for value in own]), right).value for n in (2, 3)]
        print(f"{name:18} {right.mean():6.1%} {aurocs[0]:13.2f} {aurocs[1]:13.2f}")
    by_text = defaultdict(list)
    for value in values:
        by_text[value[1]].append(value)
    drawn, texts = np.random.default_rng(0), list(by_text.values())
    gains = []
    for _ in range(RESAMPLES):
        sample = [v for n in drawn.integers(0, len(texts), len(texts)) for v in texts[n]]
        gains.append(within(sample, 2) - within(sample, 3))
    low, high = np.percentile(gains, [2.5, 97.5])
    field, whole = within(values, 2), within(values, 3)
    print(f"within a field: {field:.3f}, whole answer {whole:.3f}: {field - whole:+.3f}", end=" ")
    print(f"({low:+.3f} to {high:+.3f}) over {len(texts)} texts")


def read_values(folder: Path):
    """Yield a field's name, its text, its confidence, the answer's, and whether it is right."""
    for kind in KINDS:
        labelled = (folder / f"{kind}.labelled.jsonl").read_text().splitlines()
        for line in (folder / f"{kind}.answers.jsonl").read_text().splitlines():
            record = json.loads(line)
            labels = json.loads(labelled[record["line"] - 1])["fields"]
            row = row_of(record["id"], record, {})
            for name, value in row.fields.items():
                right = is_right(value, labels.get(name))
                text = f"{kind}:{record['line']}"
                yield f"{kind}.{name}", text, row.confidence[name], record["confidence"], right


def within(values, score: int) -> float:
    """Return the AUROC of pairs within a field."""
    by_field = defaultdict(list)
    for value in values:
        by_field[value[0]].append(value)
    total = pairs = 0.0
    for own in by_field.values():
        right = np.array([value[4] for value in own])
        weight = float(right.sum() * (~right).sum())
        if weight:
            total += weight * auroc(np.array([value[score] for value in own]), right).value
            pairs += weight
    return total / pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("texts", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    if given.what == "texts":
        write_texts(given.folder, given.seed, given.count)
    else:
        report(given.folder)


if __name__ == "__main__":
    main()
