#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dovetail/embedding/pack/table.h"

namespace dovetail::train {

/// Ranks that write the tables of a checkpoint.
///   kRankZero  Rank 0 collects all rows and writes them.
///   kHolders   Each rank writes rows that it holds:
///              - A table that is cut by rows has one piece per rank. Each rank writes its own.
///              - DistributedTables::saving_rank writes any other table. Only if the table is cut
///                by columns, the other ranks send it their columns.
enum class TableWriters { kRankZero, kHolders };

/// Returns ".<rank>-of-<ranks>". The names of the tensors of a rank's piece of a table end with it.
std::string piece_suffix(int64_t rank, int64_t ranks);

/// Returns the suffixes of the pieces of the tensor `name`, in rank order. A whole or missing
/// tensor has the suffix "" alone. `stored`: names of tensors in a map, as keys.
template <class Stored>
std::vector<std::string> piece_suffixes(const Stored& stored, const std::string& name);

/// Joins the pieces of all tables in `tensors`, the tensors of a checkpoint. They become the
/// tensors that one rank would have written, with ascending row numbers or keys. Throws UserError
/// if a piece is missing.
void join_pieces(const embedding::PackSpec& spec, std::map<std::string, at::Tensor>& tensors);

/// Returns n if `text` is the end of "<name>.0-of-<n>" and n is in [2, most], else 0.
int64_t pieces_named(const std::string& text, int64_t most);

template <class Stored>
std::vector<std::string> piece_suffixes(const Stored& stored, const std::string& name) {
  const std::string first = name + ".0-of-";
  std::vector<std::string> suffixes;
  for (auto found = stored.lower_bound(first);
       suffixes.empty() && found != stored.end() && found->first.starts_with(first); ++found) {
    const int64_t pieces =
        pieces_named(found->first.substr(first.size()), static_cast<int64_t>(stored.size()));
    for (int64_t rank = 0; rank < pieces; ++rank) suffixes.push_back(piece_suffix(rank, pieces));
  }
  if (suffixes.empty()) suffixes.emplace_back();
  return suffixes;
}

}  // namespace dovetail::train
