#include "dovetail/data/text/data_config.h"

#include "dovetail/base/error.h"

namespace dovetail::data {
namespace {

void check_sources(const DataConfig& data) {
  const int given =
      int{!data.text.empty()} + int{!data.file_list.empty()} + int{!data.mixture.empty()};
  if (given > 1) {
    throw UserError("more than one of data.text, data.file_list and data.mixture is given",
                    "keep the one to train on");
  }
  if (!data.mixture.empty() && !data.path.empty()) {
    throw UserError("both data.path and data.mixture are given",
                    "add data.path as a source: mixture = [{ path = ..., weight = ... }]");
  }
  double last = 0.0;
  for (const PhaseConfig& phase : data.phase) {
    user_check(phase.from > last && phase.from < 1.0,
               "data.phase.from = {} is out of order: phases begin at rising fractions of the run "
               "between 0 and 1",
               phase.from);
    user_check(!phase.mixture.empty(), "data.phase.mixture is empty for the phase from {}",
               phase.from);
    last = phase.from;
  }
}

/// Checks keys that only apply to a tokenizer that is trained.
void check_tokenizer(const TokenizerConfig& tokenizer) {
  const TokenizerConfig none;
  if (tokenizer.kind == "bytes" && !tokenizer.path.empty())
    throw UserError(
        fmt::format("data.tokenizer.path is {} but data.tokenizer.kind is bytes", tokenizer.path),
        "set data.tokenizer.kind to bpe or sentencepiece, whichever the file is");
  const std::string why =
      !tokenizer.path.empty()
          ? fmt::format("data.tokenizer.path = \"{}\", which is not trained", tokenizer.path)
          : fmt::format("data.tokenizer.kind = \"{}\"", tokenizer.kind);
  const bool trains = tokenizer.kind != "bytes" && tokenizer.path.empty();
  user_check(trains || tokenizer.vocab_size == none.vocab_size,
             "data.tokenizer.vocab_size = {} does nothing with {}; leave it out",
             tokenizer.vocab_size, why);
  user_check((trains && tokenizer.kind == "bpe") || tokenizer.split == none.split,
             "data.tokenizer.split = \"{}\" does nothing with {}; leave it out", tokenizer.split,
             why);
}

}  // namespace

void DataConfig::check() const {
  const DataConfig none;
  check_sources(*this);
  check_tokenizer(tokenizer);
  user_check(bad_row == "skip" || max_bad_rows == none.max_bad_rows,
             "data.max_bad_rows counts skipped records, but data.bad_row is \"error\"; set it to "
             "\"skip\"");
  user_check(
      validation_fraction > 0 || validation_split == none.validation_split,
      "data.validation_split = \"{}\" does nothing with data.validation_fraction = 0; leave it out",
      validation_split);
}

void SourceConfig::describe(Section& s) {
  s.value("path", path, "Folder made by `dovetail prepare`").required();
  s.value("weight", weight, "Share of the tokens, relative to the other sources of the mixture")
      .above(0);
}

void PhaseConfig::describe(Section& s) {
  s.value("from", from, "Fraction of the run at which this mixture begins").range(0, 1);
  s.list("mixture", mixture, "Sources of this phase");
}

void TokenizerConfig::describe(Section& s) {
  s.value("kind", kind, "Method that turns text into tokens")
      .choices({"bytes", "bpe", "sentencepiece"});
  s.value("path", path,
          "tokenizer.json or SentencePiece model to use; empty: train one on the training text");
  s.value("vocab_size", vocab_size, "Vocabulary size of a trained tokenizer")
      .unit("tokens")
      .range(257, 1000000);
  s.value("split", split, "Rule by which a trained bpe splits text into words")
      .choices({"gpt2", "llama3"});
}

void DataConfig::describe(Section& s) {
  s.value("text", text, "Files, folders and globs that `dovetail prepare` reads");
  s.value("file_list", file_list, "File that replaces text: one `root<TAB>relative path` per line");
  s.value("path", path, "Prepared folder; default data/<run.name>");
  s.value("text_field", text_field, "Field of .jsonl and column of Parquet that holds the text");
  s.value("validation_fraction", validation_fraction, "Share of the text held out for validation")
      .range(0, 0.5);
  s.value("validation_split", validation_split,
          "document: whole documents, by a hash of their relative path; tail: the end of each "
          "document")
      .choices({"document", "tail"});
  s.value("deduplicate", deduplicate, "Drop documents whose content was seen before");
  s.value("max_document_bytes", max_document_bytes, "Skip larger documents; 0: no limit")
      .unit("bytes")
      .range(0, 1e15);
  s.value("bad_row", bad_row,
          "Treatment of a JSON record that is broken, lacks text_field or has another type there. "
          "error: stop. skip: leave the record out. Null and empty texts are left out and counted "
          "either way")
      .choices({"error", "skip"});
  s.value("max_bad_rows", max_bad_rows,
          "Maximum number of records to skip with bad_row = \"skip\". More of them stop `dovetail "
          "prepare` with an error")
      .unit("records")
      .range(1, 1e12);
  s.section("tokenizer", tokenizer, "The tokenizer of `dovetail prepare`");
  s.list("mixture", mixture, "Several prepared folders in place of path, mixed by weight");
  s.list("phase", phase, "Later mixtures. Each begins at a fraction of the run");
}

}  // namespace dovetail::data
