#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/inputs.h"

namespace dovetail {

/// The unit of work of `prepare`: a text file, a range of a .jsonl file, or a row group of a Parquet file.
struct Piece {
  size_t file = 0;              ///< index into the inputs
  uint64_t begin = 0, end = 0;  ///< bytes of text and .jsonl (the lines that begin there); row groups of Parquet
  uint64_t bytes = 0;           ///< about so much text
};

/// All pieces in order. Where they are cut depends on the files alone.
std::vector<Piece> cut_into_pieces(const std::vector<InputFile>& files, const std::string& text_field);

struct Document {
  std::string_view text;  ///< valid during the call
  std::string
      identity;       ///< the relative path; for records with '#' and where they begin (byte of .jsonl, row of Parquet)
  bool valid = true;  ///< UTF-8
};

/// Every document of the piece in order, empty ones left out. Throws UserError, with the line or row, for a record that
/// has no text.
void read_documents(const InputFile& file, const Piece& piece, const std::string& text_field,
                    const std::function<void(const Document&)>& visit);

}  // namespace dovetail
