#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail::data {

/// Source of a mixture: a data set, and its share of the training samples.
struct SourceConfig {
  std::string path;     ///< folder of the data set, made by `dovetail prepare` (prepared folder)
  double weight = 1.0;  ///< share of the tokens, relative to the other sources of the mixture
  void describe(Section& s);
};

/// Phase of a run: from some step on, the run draws its samples from another mixture.
struct PhaseConfig {
  double from = 0.0;  ///< fraction of the run's steps after which this mixture begins, above 0
  std::vector<SourceConfig> mixture;
  void describe(Section& s);
};

/// `[data.tokenizer]`: the tokenizer with which `dovetail prepare` converts text to tokens.
struct TokenizerConfig {
  std::string kind = "bytes";  ///< bytes | bpe | sentencepiece
  /// Existing tokenizer.json or .model. Empty: train a tokenizer (bpe, sentencepiece) on the text.
  std::string path;
  int64_t vocab_size = 2048;  ///< vocabulary size of a trained tokenizer
  /// gpt2 | llama3: rule by which a trained bpe splits text into words before it merges
  /// (SplitPattern).
  std::string split = "gpt2";
  void describe(Section& s);
};

/// `[data]`: text to prepare (convert to tokens in a prepared folder), and prepared folders to
/// train on. A document is a text file, or a record of a JSON or Parquet file.
struct DataConfig {
  std::vector<std::string> text;  ///< files, folders and globs to prepare
  /// File that replaces `text`. It names one file to prepare per line: "root<TAB>relative path".
  std::string file_list;
  std::string path;                   ///< prepared folder; default data/<run.name>
  std::string text_field = "text";    ///< field of JSON and column of Parquet that holds the text
  double validation_fraction = 0.05;  ///< share of the text that is held out for validation
  /// Choice of the held-out text. document: whole documents, drawn by a hash of their relative
  /// path. tail: the end of each document.
  std::string validation_split = "document";
  bool deduplicate = false;        ///< skip documents whose content was seen before
  int64_t max_document_bytes = 0;  ///< skip larger documents; 0: no limit
  /// Treatment of bad JSON records. A record is bad if it is broken, if it lacks `text_field`, or
  /// if `text_field` has the wrong type. error: stop with an error. skip: leave the record out.
  std::string bad_row = "error";
  int64_t max_bad_rows = 1000;  ///< with bad_row = "skip": more bad records are an error
  TokenizerConfig tokenizer;
  std::vector<SourceConfig> mixture;  ///< several prepared folders to train on, instead of `path`
  std::vector<PhaseConfig> phase;     ///< mixtures that replace the first one later in the run
  void describe(Section& s);

  /// Throws UserError for keys that contradict one another or have no effect.
  void check() const;
};

}  // namespace dovetail::data
