#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail {

struct SourceConfig {
  std::string path;     ///< a folder made by `dovetail prepare`
  double weight = 1.0;  ///< share of the tokens
  void describe(Section& s);
};

struct PhaseConfig {
  double from = 0.0;  ///< fraction of the run at which this mixture begins
  std::vector<SourceConfig> mixture;
  void describe(Section& s);
};

struct TokenizerConfig {
  std::string kind = "bytes";  ///< bytes | bpe | sentencepiece
  std::string
      path;  ///< tokenizer.json or .model to use; empty: train one (bpe, sentencepiece) on the text
  int64_t vocab_size = 2048;   ///< of a tokenizer that is trained
  std::string split = "gpt2";  ///< pre-tokenization of a trained bpe: gpt2 | llama3
  void describe(Section& s);
};

struct DataConfig {
  std::vector<std::string> text;  ///< files, folders, globs to prepare from
  std::string file_list;  ///< instead of `text`: a file naming one "root<TAB>relative path" a line
  std::string path;       ///< prepared folder; default data/<run.name>
  std::string text_field = "text";  ///< of .jsonl and Parquet
  double validation_fraction = 0.05;
  std::string validation_split =
      "document";  ///< document: by a hash of its relative path; tail: the end of each text
  bool deduplicate = false;        ///< drop documents whose content was seen before
  int64_t max_document_bytes = 0;  ///< skip larger ones; 0: no limit
  std::string bad_row = "error";   ///< error | skip: a record of JSON that has no text
  int64_t max_bad_rows = 1000;
  TokenizerConfig tokenizer;
  std::vector<SourceConfig> mixture;  ///< instead of path: several prepared folders
  std::vector<PhaseConfig> phase;     ///< later mixtures
  void describe(Section& s);

  /// Throws UserError for keys that contradict one another or would have no effect.
  void check() const;
};

}  // namespace dovetail
