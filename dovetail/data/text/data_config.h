#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail::data {

struct SourceConfig {
  std::string path;     ///< folder made by `dovetail prepare`
  double weight = 1.0;  ///< share of the tokens, relative to the other sources
  void describe(Section& s);
};

struct PhaseConfig {
  double from = 0.0;  ///< fraction of the run at which this mixture begins
  std::vector<SourceConfig> mixture;
  void describe(Section& s);
};

struct TokenizerConfig {
  std::string kind = "bytes";  ///< bytes | bpe | sentencepiece
  /// Existing tokenizer.json or .model. Empty: train a tokenizer (bpe, sentencepiece) on the text.
  std::string path;
  int64_t vocab_size = 2048;   ///< vocabulary size of a trained tokenizer
  std::string split = "gpt2";  ///< pre-tokenization of a trained bpe: gpt2 | llama3
  void describe(Section& s);
};

struct DataConfig {
  std::vector<std::string> text;  ///< files, folders and globs to prepare
  std::string file_list;  ///< replaces `text`: file with one "root<TAB>relative path" per line
  std::string path;       ///< prepared folder; default data/<run.name>
  std::string text_field = "text";  ///< field of .jsonl and column of Parquet that holds the text
  double validation_fraction = 0.05;
  /// Held-out text. document: whole documents, by a hash of their relative path. tail: the end of
  /// each text.
  std::string validation_split = "document";
  bool deduplicate = false;        ///< drop documents whose content was seen before
  int64_t max_document_bytes = 0;  ///< skip larger documents; 0: no limit
  std::string bad_row = "error";   ///< error | skip: treatment of a JSON record that has no text
  int64_t max_bad_rows = 1000;
  TokenizerConfig tokenizer;
  std::vector<SourceConfig> mixture;  ///< several prepared folders, instead of `path`
  std::vector<PhaseConfig> phase;     ///< mixtures that begin later in the run
  void describe(Section& s);

  /// Throws UserError for keys that contradict one another or have no effect.
  void check() const;
};

}  // namespace dovetail::data
