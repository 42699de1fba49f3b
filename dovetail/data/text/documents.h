#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/data/text/inputs.h"

namespace dovetail {

/// The unit of work of `prepare`: a text file, a range of JSON lines, a JSON array, or a row group
/// of a Parquet file.
struct Piece {
  size_t file = 0;  ///< index into the inputs
  uint64_t begin = 0,
           end = 0;  ///< bytes of text and JSON (the lines that begin there); row groups of Parquet
  uint64_t bytes = 0;  ///< about so much text
};

/// All pieces in order. Where they are cut depends on the files alone.
std::vector<Piece> cut_into_pieces(const std::vector<InputFile>& files,
                                   const std::string& text_field);

/// A text file as UTF-8: unpacked, without a byte order mark.
std::string read_text(const InputFile& file);

struct Document {
  enum class State {
    kText,
    kEmpty,    ///< "", or null
    kNotUtf8,  ///< `text` holds the bytes
    kBad       ///< no text: broken JSON, no such field, a field of another type
  };
  std::string_view text;  ///< valid during the call
  std::string identity;   ///< the relative path; for records with '#' and where they begin (byte of
                          ///< JSON, row of Parquet)
  State state = State::kText;
  const UserError* problem =
      nullptr;  ///< with its place, for the first documents of a piece that are not UTF-8 or bad
};

/// Documents of a piece with a `problem` that names a place; counting lines for each one would take
/// too long.
constexpr int kProblemsDescribed = 5;

/// Every document of the piece in order.
void read_documents(const InputFile& file, const Piece& piece, const std::string& text_field,
                    const std::function<void(const Document&)>& visit);

}  // namespace dovetail
