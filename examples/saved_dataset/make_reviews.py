"""Reviews of an invented shop as a data set of Hugging Face's ``datasets``, saved to disk.

    python make_reviews.py          writes the folder reviews/ with the splits train and test

Customers and places are invented; the seed makes the same rows every time.
"""

from __future__ import annotations

import random

from datasets import Dataset, DatasetDict

SEED = 21
NAMES = ["Wilhelmina Crane", "Desmond Oyelaran", "Pilar Vanterpool", "Casimir Blyth", "Nadezhda Rowe"]
TOWNS = ["Eastmere", "Port Lindow", "Calverton", "Sandwick"]
ITEMS = ["lamp", "kettle", "chair", "clock", "shelf", "blanket", "mirror", "basket"]
PARTS = ["handle", "cable", "lid", "frame", "switch", "back", "seam"]
FEELS = ["solid", "cheap", "smooth", "rough", "light", "heavy", "well made", "a little loose"]
SENTENCES = (
    "The {item} is nice and the {part} feels {feel}.",
    "I like the {item}, but the {part} is {feel}.",
    "The {part} of the {item} was {feel} when it came.",
    "After a week the {part} still feels {feel}.",
    "It came in a box that was twice too large for a {item}.",
    "My name is {name} and I would buy the {item} again.",
    "Delivery to {town} took {days} days.",
    "The shop answered my mail at {mail} within an hour.",
    "Call me at {phone} if you want to know more about the {item}.",
    "The {item} stands in the room of my daughter {child} now.",
)


def row(draw: random.Random, number: int) -> dict[str, object]:
    """One review of two or three sentences."""
    name = draw.choice(NAMES)
    text = " ".join(draw.sample(SENTENCES, draw.randint(2, 3))).format(
        name=name,
        item=draw.choice(ITEMS),
        part=draw.choice(PARTS),
        feel=draw.choice(FEELS),
        days=draw.randint(3, 20),
        town=draw.choice(TOWNS),
        mail=f"{name.split()[0].lower()}{draw.randrange(100)}@mail.example",
        phone=f"555-01{draw.randrange(100):02d}-{draw.randrange(1000, 10_000)}",
        child=draw.choice(NAMES).split()[0],
    )
    return {"review_id": f"r{number:04d}", "customer": name.lower(), "body": text, "stars": draw.randint(1, 5)}


def main() -> None:
    """Save two splits; the larger one in three files, as large data sets are."""
    draw = random.Random(SEED)
    rows = [row(draw, number) for number in range(160)]
    both = DatasetDict({"train": Dataset.from_list(rows[:140]), "test": Dataset.from_list(rows[140:])})
    both.save_to_disk("reviews", num_shards={"train": 3, "test": 1})


if __name__ == "__main__":
    main()
