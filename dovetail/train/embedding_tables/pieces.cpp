#include "dovetail/train/embedding_tables/pieces.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <string_view>
#include <system_error>

#include "dovetail/base/error.h"
#include "dovetail/train/embedding_tables/hashed.h"

namespace dovetail::train {
namespace {

/// Tensors with one entry for each entry of the first, whose numbers or keys order them.
using Parts = std::vector<std::string_view>;

/// Removes the pieces of the tensor `name` from `tensors`, and returns them in rank order. Throws
/// UserError if one is missing or its rows have another shape or dtype than the first one's.
std::vector<at::Tensor> take_pieces(const std::string& name,
                                    const std::vector<std::string>& suffixes,
                                    std::map<std::string, at::Tensor>& tensors) {
  std::vector<at::Tensor> pieces;
  for (const std::string& suffix : suffixes) {
    const auto piece = tensors.extract(name + suffix);
    user_check(!piece.empty(), "the checkpoint lacks the tensor \"{}{}\"", name, suffix);
    pieces.push_back(piece.mapped());
    user_check(
        pieces.back().dim() > 0 && pieces.back().scalar_type() == pieces.front().scalar_type() &&
            pieces.back().sizes().slice(1) == pieces.front().sizes().slice(1),
        "the rows of \"{}{}\" have another shape or dtype than the first piece has", name, suffix);
  }
  return pieces;
}

/// Joins the pieces of a group's tensors. A table may have no optimizer state.
void join(const std::string& table, const Parts& group, const std::vector<std::string>& suffixes,
          std::map<std::string, at::Tensor>& tensors) {
  at::Tensor order;
  for (const std::string_view part : group) {
    const std::string name = table_tensor(table, part);
    if (part == "state" && !tensors.contains(name + suffixes.front())) continue;
    const at::Tensor all = at::cat(take_pieces(name, suffixes, tensors));
    if (!order.defined()) {
      user_check(all.dim() == 1 && all.scalar_type() == at::kLong,
                 "the checkpoint's \"{}\" is no list of int64", name);
      // Keys ascend as unsigned integers. So do row numbers, which are not negative.
      order = at::argsort(all ^ std::numeric_limits<int64_t>::min());
    }
    user_check(all.size(0) == order.numel(), "the checkpoint has {} entries of \"{}\", not {}",
               all.size(0), name, order.numel());
    tensors[name] = all.index_select(0, order);
  }
}

}  // namespace

std::string piece_suffix(int64_t rank, int64_t ranks) {
  return fmt::format(".{}-of-{}", rank, ranks);
}

int64_t pieces_named(const std::string& text, int64_t most) {
  int64_t pieces = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, pieces);
  const bool valid = parsed.ec == std::errc() && parsed.ptr == end && pieces >= 2 && pieces <= most;
  return valid ? pieces : 0;
}

void join_pieces(const embedding::PackSpec& spec, std::map<std::string, at::Tensor>& tensors) {
  const Parts numbered = {"rows", "weight", "state"},
              keyed = {"keys", "occurrences", "last_step", "weight", "state"},
              candidates = {"candidate_keys", "candidate_occurrences", "candidate_last_step"};
  for (const embedding::TableSpec& table : spec.tables) {
    const auto suffixes = piece_suffixes(tensors, table_tensor(table.name, "weight"));
    if (suffixes.size() == 1) continue;
    join(table.name, table.hashed ? keyed : numbered, suffixes, tensors);
    if (table.hashed) join(table.name, candidates, suffixes, tensors);
  }
}

}  // namespace dovetail::train
