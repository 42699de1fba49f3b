#include "dovetail/moe/parts.h"

#include <ATen/ATen.h>

#include <numeric>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"

namespace dovetail::moe {

namespace {

/// Returns expert (as part number) and slot, both (T, k shards).
std::vector<at::Tensor> of_parts(const Choices& choices, const Placement& placement,
                                 const ExpertLayout& layout) {
  const Parts parts{placement};
  const int64_t count = choices.expert.numel();
  const int copies =
      placement.cut / layout.shards;  // number of groups of ranks that hold the whole expert
  std::vector<int> holder_of(static_cast<size_t>(placement.experts));
  for (int64_t e = 0; e < placement.experts; ++e)
    holder_of[static_cast<size_t>(e)] = placement.holder_of(e);
  for (const int64_t e : layout.shadowed) holder_of[static_cast<size_t>(e)] = -1;
  const at::Tensor expert = choices.expert.contiguous(), slot = choices.slot.contiguous();
  const auto* of_expert = expert.const_data_ptr<int32_t>();
  const auto* of_slot = slot.const_data_ptr<int32_t>();
  const int64_t tokens = expert.size(0), width = expert.size(1) * layout.shards;
  Choices out{at::empty({tokens, width}, at::kInt), at::empty({tokens, width}, at::kInt)};
  auto* part = out.expert.mutable_data_ptr<int32_t>();
  auto* part_slot = out.slot.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < count; ++i) {
    const int holder = of_slot[i] < 0 ? -1 : holder_of[static_cast<size_t>(of_expert[i])];
    for (int shard = 0; shard < layout.shards; ++shard, ++part, ++part_slot) {
      *part_slot = holder < 0 ? -1 : of_slot[i];
      const int slice = holder < 0 ? 0 : of_slot[i] % copies * layout.shards + shard;
      *part = static_cast<int32_t>(holder < 0 ? 0 : parts.of(of_expert[i], holder, slice));
    }
  }
  return {out.expert, out.slot};
}

/// Returns token and choice for `arriving`. Rows of sender r for expert e start at first[r][e].
std::vector<at::Tensor> rows_of_experts(const std::vector<std::vector<int64_t>>& counts,
                                        const std::vector<std::vector<int64_t>>& first,
                                        int64_t rows) {
  std::vector<at::Tensor> out = {at::empty({rows}, at::kInt), at::empty({rows}, at::kLong)};
  auto* token = out[0].mutable_data_ptr<int32_t>();
  auto* choice = out[1].mutable_data_ptr<int64_t>();
  int64_t row = 0;
  for (size_t e = 0; rows > 0 && e < counts[0].size(); ++e) {
    for (size_t r = 0; r < counts.size(); ++r) {
      for (int64_t i = 0; i < counts[r][e]; ++i, ++row) {
        choice[row] = first[r][e] + i;
        token[row] = static_cast<int32_t>(choice[row]);
      }
    }
  }
  return out;
}

}  // namespace

Choices choices_of_parts(const Choices& choices, const Placement& placement,
                         const ExpertLayout& layout) {
  const auto made =
      operation("dovetail::moe_parts", {.reads = {choices.expert, choices.slot}},
                [placement, layout](const Operands& inputs) {
                  return of_parts({inputs.reads[0], inputs.reads[1]}, placement, layout);
                });
  return {made[0], made[1]};
}

Choices choices_of_shadowed(const Choices& choices, const Placement& placement,
                            const std::vector<int64_t>& shadowed) {
  std::vector<int32_t> index(static_cast<size_t>(placement.experts), -1);
  for (size_t i = 0; i < shadowed.size(); ++i)
    index[static_cast<size_t>(shadowed[i])] = static_cast<int32_t>(i);
  const at::Tensor of_choice = at::tensor(index, at::kInt).take(choices.expert.to(at::kLong));
  return {of_choice.clamp_min(0), at::where(of_choice < 0, -1, choices.slot).to(at::kInt)};
}

SentRows sent_rows(const DispatchedRows& by_part, const Placement& placement, int64_t tokens) {
  const Parts parts{placement};
  const int64_t ranks = placement.ranks;
  SentRows sent{.rows = {.offsets = {0}, .choice = {}, .token = {}},
                .row_of_part = at::empty({by_part.size()}, at::kInt)};
  const auto* token = by_part.token.const_data_ptr<int32_t>();
  auto* row_of_part = sent.row_of_part.mutable_data_ptr<int32_t>();
  std::vector<int32_t> tokens_sent;
  std::vector<int64_t> choices_sent, row_of_token(static_cast<size_t>(tokens), -1);
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t first = sent.rows.offsets.back(),
                  end_part = parts.first(rank) + placement.count(placement.holder(rank));
    for (int64_t i = by_part.first(parts.first(rank)); i < by_part.first(end_part); ++i) {
      int64_t& row = row_of_token[static_cast<size_t>(token[i])];
      if (row < first) {  // the token has no row to this rank yet
        row = std::ssize(tokens_sent);
        tokens_sent.push_back(token[i]);
        choices_sent.push_back(token[i] * ranks + rank);
      }
      row_of_part[i] = static_cast<int32_t>(row - first);
    }
    sent.rows.offsets.push_back(std::ssize(tokens_sent));
  }
  sent.rows.token = at::tensor(tokens_sent, at::kInt);
  sent.rows.choice = at::tensor(choices_sent, at::kLong);
  return sent;
}

ArrivedChoices arrived_choices(const std::vector<std::vector<int64_t>>& counts,
                               const std::vector<int64_t>& rows, const at::Tensor& row_of_part,
                               int64_t width) {
  const size_t experts = counts.front().size();
  const int64_t choices = row_of_part.numel(),
                all_rows = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  std::vector<std::vector<int64_t>> first(counts.size());  // first choice of a sender and expert
  int64_t next = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    for (const int64_t count : counts[r]) {
      first[r].push_back(next);
      next += count;
    }
  }
  DOVETAIL_CHECK(next == choices, "{} choices arrived, {} were announced", choices, next);
  ArrivedChoices out{.by_expert = {.offsets = {0},
                                   .choice = at::empty({choices}, at::kLong),
                                   .token = at::empty({choices}, at::kInt)},
                     .choice_of_arrival = at::empty({choices}, at::kLong)};
  const auto* row = row_of_part.const_data_ptr<int32_t>();
  auto* choice = out.by_expert.choice.mutable_data_ptr<int64_t>();
  auto* token = out.by_expert.token.mutable_data_ptr<int32_t>();
  auto* of_arrival = out.choice_of_arrival.mutable_data_ptr<int64_t>();
  std::vector<int32_t> choices_of_row(static_cast<size_t>(all_rows), 0);
  for (size_t e = 0; e < experts; ++e) {
    int64_t first_row = 0;
    for (size_t r = 0; r < counts.size(); first_row += rows[r], ++r) {
      for (int64_t i = first[r][e]; i < first[r][e] + counts[r][e]; ++i) {
        const int64_t arrived = first_row + row[i];
        const int32_t j = choices_of_row[static_cast<size_t>(arrived)]++;
        of_arrival[i] = *choice++ = arrived * width + j;
        *token++ = static_cast<int32_t>(arrived);
      }
    }
    out.by_expert.offsets.push_back(choice - out.by_expert.choice.const_data_ptr<int64_t>());
  }
  return out;
}

DispatchedRows arriving(const std::vector<std::vector<int64_t>>& counts, int64_t experts) {
  std::vector<std::vector<int64_t>> first(counts.size());
  DispatchedRows out{.offsets = std::vector<int64_t>(static_cast<size_t>(experts) + 1, 0),
                     .choice = {},
                     .token = {}};
  int64_t rows = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    for (size_t e = 0; e < counts[r].size(); ++e) {
      first[r].push_back(rows);
      rows += counts[r][e];
      out.offsets[e + 1] += counts[r][e];
    }
  }
  std::partial_sum(out.offsets.begin(), out.offsets.end(), out.offsets.begin());
  const auto made = operation(
      "dovetail::moe_arriving_rows", {},
      [counts, first, rows](const Operands&) { return rows_of_experts(counts, first, rows); });
  out.token = made[0];
  out.choice = made[1];
  return out;
}

}  // namespace dovetail::moe
