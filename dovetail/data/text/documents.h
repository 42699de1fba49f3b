#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/data/text/inputs.h"

namespace dovetail::data {

/// Unit of work of `prepare`: a text file, a range of JSON lines, a JSON array, or a row group of a
/// Parquet file.
struct Piece {
  size_t file = 0;  ///< index of the file in the inputs
  /// Bytes of text and JSON, or row groups of Parquet. A JSON line belongs to the piece in which it
  /// begins.
  uint64_t begin = 0, end = 0;
  uint64_t bytes = 0;  ///< approximate size of the text
};

/// Returns all pieces in order. Their boundaries depend on the files alone.
std::vector<Piece> cut_into_pieces(const std::vector<InputFile>& files,
                                   const std::string& text_field);

/// Returns the content of a text file as UTF-8: decompressed, without a byte order mark.
std::string read_text(const InputFile& file);

struct Document {
  enum class State {
    kText,
    kEmpty,    ///< "" or null
    kNotUtf8,  ///< `text` holds the bytes
    kBad       ///< broken JSON, a missing field or a field of another type
  };
  std::string_view text;  ///< valid during the call of `visit`
  /// Relative path. For a record, '#' and its position follow: byte of JSON, row of Parquet.
  std::string identity;
  State state = State::kText;
  /// Problem with its place, for the first documents of a piece that are not UTF-8 or bad.
  const UserError* problem = nullptr;
};

/// Maximum number of documents of a piece that get a `problem` with its place. Counting lines for
/// each bad document would take too long.
constexpr int kProblemsDescribed = 5;

/// Calls `visit` with every document of the piece, in order.
void read_documents(const InputFile& file, const Piece& piece, const std::string& text_field,
                    const std::function<void(const Document&)>& visit);

}  // namespace dovetail::data
