"""Makes tests/data_files/tokenizers: results of the PyPI packages `tokenizers` and `sentencepiece`, for tests in C++.

    ./dev python tools/make_tokenizer_fixtures.py

Writes texts.json. For each of several small tokenizers it writes its own file and the ids of the texts
(<name>.ids.json). It also writes training.txt with the merges that Hugging Face's trainer learns from it. The last
file has the code points of each class of the split patterns.
"""

import io
import json
import random
import unicodedata
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data_files" / "tokenizers"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Characters that make split patterns disagree. These are quotes, all kinds of space and newline,
# digits of several scripts, combining marks, joiners and emoji. Others are letters whose case folds
# oddly, and the first and last character of each UTF-8 length.
TRICKY = [
    *"'\u2019sStTmMdDrRvVeElLaZ0189 \t\n\r\u000b\u0085\u00a0\u1680\u2002\u2028\u202f\u3000_-.,!?<>|",
    *"\u0301\u0308\u200b\u200d\ufe0f\u00e9\u00df\u017f\u212a\u0130\u03a3\u4e2d\u6587\u0e01\u0e31\u0939\u093f\u05d0",
    *"\u0660\u0967\u00b2\u2167\u3007\U0001f600\U0001f468\U0001f3fd\U0001d7d8\U0010ffff\ud7ff\ue000\u0000\u007f\u0080",
    *"\u07ff\u0800\uffff\U00010000\ufeff\u2581",
]
WORDS = [
    *("'s", "'T", "'Re", "'VE", "'ll", "'D", "don't", "  ", "\n\n", "\r\n", " \n", "    ", "def f(x):", "12345"),
    *("<|end|>", "<|end|>!", "<|en", "word", "\u0441\u043b\u043e\u0432\u043e", "\u8bcd\u8a9e", "e\u0301", "<tab>"),
]
HAND_WRITTEN = [
    *("", " ", "\n", "'", "''s", "a", "Hello, world!", "I'll say it's DON'T", "x  y   z    "),
    *("\t\tif x:\n\t\t\treturn 1\n", "1234567890 12 3", "3.14159e-10", "aaaaaaaaaaaaaaaaaaaaaaaa", "a\u0301\u0302b"),
    *("caf\u00e9 na\u00efve \u0130stanbul stra\u00dfe", "\u4f60\u597d\uff0c\u4e16\u754c\uff01"),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "trailing spaces   \n\n\n  next", "\r\n\r\n x"),
    "<|end|><|end|> and <|end|>!",
]


def training_text():
    """Pseudo-words in a Zipf-like order, with numbers, punctuation and other scripts: many equal counts."""
    draw = random.Random(7)
    syllables = [
        "ka",
        "lo",
        "mi",
        "ren",
        "th",
        "st",
        "ing",
        "er",
        "\u00e9",
        "\u03b1\u03b2",
        "\u0436\u0438",
        "\u4e2d",
        "an",
        "o",
        "u",
    ]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(400)]
    lines = []
    for _ in range(300):
        line = []
        for _ in range(draw.randint(1, 12)):
            kind = draw.random()
            if kind < 0.8:
                line.append(words[int(400 * draw.random() ** 2)])
            elif kind < 0.9:
                line.append(str(draw.randint(0, 99999)))
            else:
                line.append(draw.choice(["aaaa", "...", "!?", "it's", "I'LL", "x = y", "   ", "--", "abab"]))
        lines.append(" ".join(line))
    return "\n".join(lines) + "\n"


def texts():
    draw = random.Random(11)
    mixed = ["".join(draw.choices(TRICKY + WORDS, k=draw.randint(1, 40))) for _ in range(110)]
    lines = training_text().split("\n")[:10]
    return HAND_WRITTEN + mixed + lines


def write_json(name, value):
    (FOLDER / name).write_text(json.dumps(value, separators=(",", ":")) + "\n")


def pre_tokenizer(pattern):
    if pattern == GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


def trained(pattern, vocab_size, special=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(pattern)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([training_text()], trainer)
    return json.loads(tokenizer.to_str())


def save(name, description):
    write_json(f"{name}.json", description)
    tokenizer = Tokenizer.from_str(json.dumps(description))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts()]
    for text, encoded in zip(texts(), ids, strict=True):
        assert tokenizer.decode(encoded, skip_special_tokens=False) == text, text
    write_json(f"{name}.ids.json", ids)


def added(description, *tokens):
    """Adds tokens the way the library does, after training."""
    tokenizer = Tokenizer.from_str(json.dumps(description))
    tokenizer.add_special_tokens([t for t in tokens if t.special])
    tokenizer.add_tokens([t for t in tokens if not t.special])
    return json.loads(tokenizer.to_str())


def make_bpe():
    special = AddedToken("<|endoftext|>", special=True, normalized=False)
    end = AddedToken("<|end|>", special=True, normalized=False)
    longer = AddedToken("<|end|>!", special=True, normalized=False)
    inner = AddedToken("|>", special=False, normalized=True)
    tab = AddedToken("<tab>", special=False, normalized=True)

    save("gpt2", added(trained(GPT2, 400), special))
    save("llama3", added(trained(LLAMA3, 400, ["<|endoftext|>"]), end, longer, inner, tab))

    # As written before tokenizers 0.20: merges "a b", defaults left out.
    old = added(trained(GPT2, 330), special)
    old["model"]["merges"] = [" ".join(pair) for pair in old["model"]["merges"]]
    for key in ("type", "byte_fallback", "ignore_merges"):
        del old["model"][key]
    del old["pre_tokenizer"]["use_regex"]
    save("old_merges", old)

    # Words that are tokens but that no merges reach, as Llama-3 has them.
    whole = added(trained(LLAMA3, 380), special)
    whole["model"]["ignore_merges"] = True
    whole["model"]["merges"] = whole["model"]["merges"][:60]
    save("ignore_merges", whole)


def make_trainer_oracle():
    (FOLDER / "training.txt").write_text(training_text())
    for name, pattern in (("gpt2", GPT2), ("llama3", LLAMA3)):
        model = trained(pattern, 500)["model"]
        write_json(f"trained_{name}.json", {"vocab": model["vocab"], "merges": model["merges"]})


def make_splits():
    """Bytes of each word of each text, by pattern, of the texts of texts.json and some more."""
    # A letter whose case folds to s, which Llama-3's (?i:'s|...) takes for one.
    more = ["it'\u017fx IT'\u017fX", "x'\u017f", "'\u017f\u017f"]
    splits = {"more_texts": more}
    for name, pattern in (("gpt2", GPT2), ("llama3", LLAMA3)):
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        splits[name] = [[len(w.encode()) for w, _ in split.pre_tokenize_str(text)] for text in texts() + more]
    write_json("splits.json", splits)


def make_classes():
    """First and last code points of the runs of each class, as the regular expressions of `tokenizers` see it."""
    every = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)
    classes = {}
    for name, pattern in (("letter", r"\p{L}"), ("number", r"\p{N}"), ("space", r"\s")):
        # Characters that do not match are removed, so that the remaining runs are the class.
        split = pre_tokenizers.Split(Regex(f"(?!{pattern})[\\s\\S]"), "removed")
        runs = [(ord(run[0]), ord(run[-1])) for run, _ in split.pre_tokenize_str(every)]
        classes[name] = [bound for run in runs for bound in run]
    # Python's Unicode is older than the one of `tokenizers` and of utf8proc: what it knows, they should agree about.
    known = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    begins = [c for i, c in enumerate(known) if i == 0 or known[i - 1] != c - 1]
    ends = [c for i, c in enumerate(known) if i + 1 == len(known) or known[i + 1] != c + 1]
    classes["compared"] = [bound for run in zip(begins, ends, strict=True) for bound in run]
    write_json("classes.json", classes)


def make_sentencepiece():
    """One model as Llama-2's (BPE, dummy prefix, bytes for the unknown) and one that keeps every byte (unigram)."""
    kinds = {
        "sp_bpe": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", split_digits=True),
        "sp_unigram": dict(model_type="unigram", byte_fallback=True, normalization_rule_name="identity",
                           add_dummy_prefix=False, remove_extra_whitespaces=False, allow_whitespace_only_pieces=True),
    }  # fmt: skip
    for name, options in kinds.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(training_text().split("\n")),
            model_writer=model,
            vocab_size=450,
            hard_vocab_limit=False,
            num_threads=1,
            minloglevel=2,
            **options,
        )
        (FOLDER / f"{name}.model").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        write_json(f"{name}.ids.json", [processor.encode(text) for text in texts()])


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_json("texts.json", texts())
    make_bpe()
    make_trainer_oracle()
    make_splits()
    make_classes()
    make_sentencepiece()
    total = sum(f.stat().st_size for f in FOLDER.iterdir())
    print(f"{FOLDER}: {total / 1000:.0f} kB")
