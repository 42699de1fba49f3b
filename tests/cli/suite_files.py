"""Small data sets in the formats of the benchmark suites, in the folders of their repositories on the Hub."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tiny_run import WORDS

STEM = """abstract_algebra anatomy astronomy college_biology college_chemistry college_computer_science
college_mathematics college_physics computer_security conceptual_physics electrical_engineering
elementary_mathematics high_school_biology high_school_chemistry high_school_computer_science
high_school_mathematics high_school_physics high_school_statistics machine_learning"""
HUMANITIES = """formal_logic high_school_european_history high_school_us_history high_school_world_history
international_law jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy prehistory
professional_law world_religions"""
SOCIAL_SCIENCES = """econometrics high_school_geography high_school_government_and_politics
high_school_macroeconomics high_school_microeconomics high_school_psychology human_sexuality
professional_psychology public_relations security_studies sociology us_foreign_policy"""
OTHER = """business_ethics clinical_knowledge college_medicine global_facts human_aging management marketing
medical_genetics miscellaneous nutrition professional_accounting professional_medicine virology"""
CATEGORIES = {
    "stem": STEM.split(), "humanities": HUMANITIES.split(), "social sciences": SOCIAL_SCIENCES.split(),
    "other": OTHER.split(),
}  # fmt: skip
SUBJECTS = sorted(subject for subjects in CATEGORIES.values() for subject in subjects)

TEXT, TEXTS = pa.string(), pa.list_(pa.string())
LABELLED = pa.struct([("text", TEXTS), ("label", TEXTS)])
SCHEMAS = {
    "cais/mmlu": {"question": TEXT, "subject": TEXT, "choices": TEXTS, "answer": pa.int64()},
    "allenai/ai2_arc": {"id": TEXT, "question": TEXT, "choices": LABELLED, "answerKey": TEXT},
    "allenai/openbookqa": {"id": TEXT, "question_stem": TEXT, "choices": LABELLED, "answerKey": TEXT},
    "tau/commonsense_qa": {
        "id": TEXT, "question": TEXT, "question_concept": TEXT,
        "choices": pa.struct([("label", TEXTS), ("text", TEXTS)]), "answerKey": TEXT,
    },
    "Rowan/hellaswag": {
        "ind": pa.int32(), "activity_label": TEXT, "ctx_a": TEXT, "ctx_b": TEXT, "ctx": TEXT, "endings": TEXTS,
        "source_id": TEXT, "split": TEXT, "split_type": TEXT, "label": TEXT,
    },
    "baber/piqa": {"goal": TEXT, "sol1": TEXT, "sol2": TEXT, "label": pa.int64()},
    "allenai/winogrande": {"sentence": TEXT, "option1": TEXT, "option2": TEXT, "answer": TEXT},
    "EleutherAI/race": {"article": TEXT, "problems": TEXT},
    "lighteval/siqa": {
        "context": TEXT, "question": TEXT, "answerA": TEXT, "answerB": TEXT, "answerC": TEXT, "label": TEXT,
    },
}  # fmt: skip


def write_split(folder: Path, repository: str, path: str, rows: list[dict]) -> None:
    """Writes rows as a Parquet file with the schema of `repository`; `path` is below it."""
    file = folder / repository / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(SCHEMAS[repository])), file, row_group_size=7)


class Rows:
    """Random rows of each data set. Texts are words of the training text, and some that it never has."""

    def __init__(self, seed: int):
        self.draw = random.Random(seed)

    def words(self, least: int, most: int) -> str:
        some = [word.strip() for word in WORDS] + ["Été", "日本", "it's", '"so"']
        return " ".join(self.draw.choice(some) for _ in range(self.draw.randint(least, most)))

    def labelled(self, labels: list[str]) -> dict:
        return {"text": [self.words(1, 4) for _ in labels], "label": labels}

    def mmlu(self, subject: str) -> dict:
        question = self.draw.choice(["", " ", "\n"]) + self.words(3, 8) + self.draw.choice(["", " \n"])
        choices = [self.words(1, 3) for _ in range(4)]
        return {"question": question, "subject": subject, "choices": choices, "answer": self.draw.randrange(4)}

    def arc(self) -> dict:
        labels = self.draw.choice([["A", "B", "C", "D"], ["1", "2", "3"], ["A", "B", "C", "D", "E"]])
        question = {"id": self.words(2, 2), "question": self.words(3, 8), "choices": self.labelled(labels)}
        return question | {"answerKey": self.draw.choice(labels)}

    def openbookqa(self) -> dict:
        labels = ["A", "B", "C", "D"]
        key = self.draw.choice(["", " "]) + self.draw.choice(labels)
        stem = self.words(3, 8) + self.draw.choice(["", " "])
        return {"id": "7-1", "question_stem": stem, "choices": self.labelled(labels), "answerKey": key}

    def commonsense_qa(self) -> dict:
        labels = ["A", "B", "C", "D", "E"]
        return {
            "id": f"{self.draw.random()}", "question": f" {self.words(3, 8)}", "question_concept": "gears",
            "choices": self.labelled(labels), "answerKey": self.draw.choice(labels),
        }  # fmt: skip

    def hellaswag(self, split: str) -> dict:
        mark = self.draw.choice(["", " [title]", "[step] ", " [substeps]  ", "[a\nb]"])
        row = {
            "ind": self.draw.randrange(99), "activity_label": self.words(1, 2), "ctx_a": f"{self.words(2, 5)}.{mark}",
            "ctx_b": self.draw.choice(["", "the", "été AND", "AN OLD"]), "source_id": "w~1", "split": split,
            "split_type": "indomain", "label": str(self.draw.randrange(4)),
            "endings": [f"{self.words(2, 5)}{mark} {self.words(1, 3)}" for _ in range(4)],
        }  # fmt: skip
        return row | {"ctx": f"{row['ctx_a']} {row['ctx_b']}"}

    def piqa(self) -> dict:
        choices = {"sol1": self.words(2, 6), "sol2": self.words(2, 6)}
        return {"goal": self.words(2, 6)} | choices | {"label": self.draw.randrange(2)}

    def winogrande(self) -> dict:
        sentence = f"{self.words(2, 5)} _ {self.words(1, 4)} _ x."
        options = {"option1": self.words(1, 1), "option2": self.words(1, 2) + self.draw.choice(["", " "])}
        return {"sentence": sentence} | options | {"answer": self.draw.choice(["1", "2"])}

    def race(self) -> dict:
        problems = [
            {
                "question": self.words(2, 5) + self.draw.choice(["?", "  _  .", " _ ."]),
                "answer": self.draw.choice("ABCD"),
                "options": [self.words(1, 3) + self.draw.choice(["", "\n", "\\", "\x85"]) for _ in range(4)],
            }
            for _ in range(self.draw.randint(1, 3))
        ]
        return {"article": self.words(8, 15), "problems": repr(problems)}

    def social_iqa(self) -> dict:
        answers = {f"answer{letter}": self.words(1, 4) for letter in "ABC"}
        context = {"context": self.words(3, 6), "question": self.words(2, 4) + "?"}
        return context | answers | {"label": self.draw.choice("123")}


def write_data_sets(folder: Path) -> None:
    """Writes the data sets of the suites `mmlu` and `reasoning` below `folder`."""
    rows = Rows(5)
    for subject in SUBJECTS:
        count = 2 + len(subject) % 3  # categories weigh subjects by their size; one item has no standard error
        for split, size in [("test", count), ("dev", 6)]:
            path = f"{subject}/{split}-00000-of-00001.parquet"
            write_split(folder, "cais/mmlu", path, [rows.mmlu(subject) for _ in range(size)])
    for config, pool in [("ARC-Challenge", 30), ("ARC-Easy", 21)]:
        for split, size in [("test", 9), ("train", pool), ("validation", 2)]:
            path = f"{config}/{split}-00000-of-00001.parquet"
            write_split(folder, "allenai/ai2_arc", path, [rows.arc() for _ in range(size)])
    for split, size in [("test", 9), ("train", 25)]:
        path = f"main/{split}-00000-of-00001.parquet"
        write_split(folder, "allenai/openbookqa", path, [rows.openbookqa() for _ in range(size)])
    for part in range(2):  # a split in two files
        path = f"data/train-0000{part}-of-00002.parquet"
        write_split(folder, "tau/commonsense_qa", path, [rows.commonsense_qa() for _ in range(11)])
    path = "data/validation-00000-of-00001.parquet"
    write_split(folder, "tau/commonsense_qa", path, [rows.commonsense_qa() for _ in range(9)])
    for split, size in [("train", 25), ("validation", 9)]:  # the layout of refs/convert/parquet
        path = f"default/{split}/0000.parquet"
        write_split(folder, "Rowan/hellaswag", path, [rows.hellaswag(split[:5]) for _ in range(size)])
    questions = [rows.piqa() for _ in range(9)]
    # Questions that are examples as well. One is there so often that a draw can hold nothing else.
    copies = [questions[0]] * 5 + questions[1:4] + [rows.piqa()]
    write_split(folder, "baber/piqa", "piqa_train.parquet", copies)
    write_split(folder, "baber/piqa", "piqa_validation.parquet", [questions[0]] * 4 + questions)
    for split, size in [("train", 25), ("validation", 9)]:
        path = f"winogrande_xl/{split}-00000-of-00001.parquet"
        write_split(folder, "allenai/winogrande", path, [rows.winogrande() for _ in range(size)])
    path = "high/test-00000-of-00001.parquet"
    write_split(folder, "EleutherAI/race", path, [rows.race() for _ in range(9)])
    for split, size in [("train-00000-of-00001-da17dfc1120ed1ee", 25), ("validation-00000-of-00001", 9)]:
        write_split(folder, "lighteval/siqa", f"data/{split}.parquet", [rows.social_iqa() for _ in range(size)])
    write_cards(folder)


def write_cards(folder: Path) -> None:
    """Writes the card of each repository with several configurations, by which `datasets` finds their files."""
    for repository in ["cais/mmlu", "allenai/ai2_arc", "allenai/openbookqa", "allenai/winogrande", "EleutherAI/race"]:
        card = ["---", "configs:"]
        for config in sorted(path.name for path in (folder / repository).iterdir() if path.is_dir()):
            card += [f"- config_name: {config}", "  data_files:"]
            for file in sorted((folder / repository / config).iterdir()):
                card += [f"  - split: {file.name.split('-')[0]}", f"    path: {config}/{file.name}"]
        (folder / repository / "README.md").write_text("\n".join([*card, "---", ""]))
