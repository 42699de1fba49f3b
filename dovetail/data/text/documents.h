#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/data/text/inputs.h"

namespace dovetail::data {

/// Part of an input file that one thread of `prepare` processes at a time. It is a text file, about
/// 4 MiB of JSON lines, a JSON array, or a row group of a Parquet file.
struct Piece {
  size_t file = 0;  ///< index of the file in the list of input files
  /// Range [begin, end) in the file: of bytes for text and JSON, of row groups for Parquet. A JSON
  /// line belongs to the piece in which it begins.
  uint64_t begin = 0, end = 0;
  uint64_t bytes = 0;  ///< approximate size of the piece's text, decompressed
};

/// Returns the pieces of all files, in order. Their boundaries depend on the files alone.
/// `text_field` is the column with the text in a Parquet file.
std::vector<Piece> cut_into_pieces(const std::vector<InputFile>& files,
                                   const std::string& text_field);

/// Returns the content of a text file as UTF-8: decompressed, without a byte order mark.
std::string read_text(const InputFile& file);

/// Document of an input file: a whole text file, or the text of one record of a JSON or Parquet
/// file.
struct Document {
  enum class State {
    kText,     ///< has a text in UTF-8
    kEmpty,    ///< has no text: "" or null
    kNotUtf8,  ///< is not UTF-8; `text` holds the bytes
    kBad       ///< broken JSON, a missing field or a field of another type
  };
  std::string_view text;  ///< valid only during the call of `visit`
  /// Name of the document: InputFile::relative. For a record, '#' and its position in the file
  /// follow. The position is the byte at which it begins (JSON) or its row (Parquet), from 0.
  std::string identity;
  State state = State::kText;
  /// Error that describes why the document is kNotUtf8 or kBad, with its place in the file. Null
  /// for other documents. Also null after the first such documents of a piece (kProblemsDescribed).
  const UserError* problem = nullptr;
};

/// Maximum number of documents per piece for which `problem` is set. To find the line number of
/// each bad document would take too long.
constexpr int kProblemsDescribed = 5;

/// Calls `visit` with every document of the piece, in order. `text_field` is the field of JSON or
/// the column of Parquet that holds the text.
void read_documents(const InputFile& file, const Piece& piece, const std::string& text_field,
                    const std::function<void(const Document&)>& visit);

}  // namespace dovetail::data
