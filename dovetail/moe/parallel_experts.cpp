#include "dovetail/moe/parallel_experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/moe/parts.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

/// A chunk of tokens. `to` dispatches its rows to all ranks; `local` groups the rows that this rank
/// receives by expert.
struct Chunk {
  at::Tensor x, weight;
  Dispatch to;
  std::optional<comm::Exchange> exchange;
  Dispatch local;
};

/// Repeats weights for experts in r shards: each row becomes r rows with the same weight.
at::Tensor shard_weight(const at::Tensor& weight, const ExpertLayout& layout) {
  return layout.shards == 1 ? weight
                            : weight.unsqueeze(2).expand({-1, -1, layout.shards}).flatten(1);
}

/// Makes chunks of slots for padded rows. If `copies` groups of ranks hold each expert whole, each
/// group gets every copies-th slot.
std::vector<Chunk> make_padded_chunks(const at::Tensor& x, const at::Tensor& weight,
                                      const Choices& parts, int64_t part_count,
                                      const ExpertLayout& layout, int copies, int64_t capacity) {
  std::vector<Chunk> chunks;
  for (int64_t i = 0; i < layout.overlap; ++i) {
    const int64_t first = capacity * i / layout.overlap, end = capacity * (i + 1) / layout.overlap;
    const at::Tensor inside = parts.slot.ge(first).logical_and_(parts.slot.lt(end));
    const at::Tensor slot = at::where(inside, parts.slot - first, -1).to(at::kInt);
    chunks.push_back({.x = x,
                      .weight = shard_weight(weight, layout),
                      .to = padded_dispatch(parts.expert, slot, part_count,
                                            (end - first + copies - 1) / copies)});
  }
  return chunks;
}

std::vector<Chunk> make_chunks(const at::Tensor& x, const at::Tensor& weight, const Choices& parts,
                               int64_t part_count, const ExpertLayout& layout) {
  const at::Tensor part_weight = shard_weight(weight, layout);
  if (layout.overlap == 1)
    return {{.x = x, .weight = part_weight, .to = dispatch(parts.expert, parts.slot, part_count)}};
  const auto xs = x.tensor_split(layout.overlap),
             weights = part_weight.tensor_split(layout.overlap),
             experts = parts.expert.tensor_split(layout.overlap),
             slots = parts.slot.tensor_split(layout.overlap);
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < xs.size(); ++i)
    chunks.push_back(
        {.x = xs[i], .weight = weights[i], .to = dispatch(experts[i], slots[i], part_count)});
  return chunks;
}

/// Exchanges the row counts of all chunks at once, so that every rank knows what it will receive.
void exchange_counts(std::vector<Chunk>& chunks, const ExpertRanks& ranks,
                     const ExpertLayout& layout) {
  const Placement& placement = ranks.placement;
  const Parts parts{placement};
  const int64_t own = placement.count(placement.holder(ranks.group->rank())),
                n = std::ssize(chunks);
  at::Tensor table = at::empty({parts.count(), n}, at::kLong);
  auto* counts = table.mutable_data_ptr<int64_t>();
  for (int64_t part = 0; part < parts.count(); ++part)
    for (const Chunk& chunk : chunks) *counts++ = chunk.to.rows().count(part);
  comm::Splits splits;
  for (int rank = 0; rank < placement.ranks; ++rank) {
    splits.send.push_back(placement.count(placement.holder(rank)));
    splits.receive.push_back(own);
  }
  const at::Tensor received = comm::Exchange(ranks.group, splits).start(table).wait();
  const auto* coming = received.const_data_ptr<int64_t>();
  for (size_t c = 0; c < chunks.size(); ++c) {
    std::vector<std::vector<int64_t>> by_rank(static_cast<size_t>(placement.ranks));
    comm::Splits rows;
    for (int rank = 0; rank < placement.ranks; ++rank) {
      rows.send.push_back(
          chunks[c].to.rows().first(parts.first(rank) + splits.send[static_cast<size_t>(rank)]) -
          chunks[c].to.rows().first(parts.first(rank)));
      rows.receive.push_back(0);
      for (int64_t e = 0; e < own; ++e) {
        by_rank[static_cast<size_t>(rank)].push_back(
            coming[(rank * own + e) * n + static_cast<int64_t>(c)]);
        rows.receive.back() += by_rank[static_cast<size_t>(rank)].back();
      }
    }
    chunks[c].local = arriving(by_rank, own);
    chunks[c].exchange.emplace(layout.hierarchical
                                   ? comm::Exchange::hierarchical(*ranks.nodes, rows.send)
                                   : comm::Exchange(ranks.group, std::move(rows)));
  }
}

/// Computes the row counts that every rank will receive. Rows are padded, so no exchange is needed.
void plan_padded(std::vector<Chunk>& chunks, const ExpertRanks& ranks, const ExpertLayout& layout) {
  const Placement& placement = ranks.placement;
  const int64_t own = placement.count(placement.holder(ranks.group->rank()));
  user_check(!layout.hierarchical || placement.experts % placement.holders() == 0,
             "2DH of rows that are padded to a capacity needs as many experts on every rank, but "
             "{} are spread over {}",
             placement.experts, placement.holders());
  for (Chunk& chunk : chunks) {
    comm::Splits rows;
    for (int rank = 0; rank < placement.ranks; ++rank) {
      rows.send.push_back(placement.count(placement.holder(rank)) * chunk.to.capacity());
      rows.receive.push_back(own * chunk.to.capacity());
    }
    const std::vector<int64_t> of_sender(static_cast<size_t>(own), chunk.to.capacity());
    chunk.local = arriving(std::vector(static_cast<size_t>(placement.ranks), of_sender), own);
    chunk.exchange.emplace(layout.hierarchical
                               ? comm::Exchange::hierarchical_even(*ranks.nodes, chunk.to.places())
                               : comm::Exchange(ranks.group, std::move(rows)));
  }
}

/// Returns the rows of each expert in the dispatched matrix.
mx::RowGroups groups_of(const Dispatch& to) {
  if (to.capacity() == 0 && to.is_recorded())
    return {.offsets = {}, .recorded = to.recorded().offsets};
  mx::RowGroups groups;
  for (int64_t e = 0; e <= to.experts(); ++e)
    groups.offsets.push_back(to.capacity() > 0 ? e * to.capacity() : to.rows().first(e));
  return groups;
}

/// Runs experts on rows that are one row for each choice. Returns their results in the order of
/// the rows.
at::Tensor run_arrived(const at::Tensor& x, const Dispatch& to, const LocalExperts& experts,
                       at::ScalarType sums) {
  const at::Tensor ones = at::ones({x.size(0), 1}, x.options().dtype(sums).requires_grad(false));
  return run_experts(x, ones, to, experts);
}

/// Sends rows to the experts and back. Returns the results of each chunk's tokens. Order: dispatch
/// 0, dispatch 1, combine 0, dispatch 2, combine 1, ...
std::vector<at::Tensor> exchange_rows(const std::vector<Chunk>& chunks, const LocalExperts& experts,
                                      const ExpertRanks& ranks) {
  std::vector<comm::PendingRows> there, back;
  const auto start = [&](const Chunk& chunk) {
    there.push_back(
        comm::start_all_to_all(dispatch_rows(chunk.x, chunk.to), *chunk.exchange, ranks.dispatch));
  };
  start(chunks.front());
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i + 1 < chunks.size()) start(chunks[i + 1]);
    const at::Tensor rows = there[i].wait();
    const at::Tensor made =
        run_arrived(rows, chunks[i].local, experts, chunks[i].weight.scalar_type());
    // Results are float32 sums, which only the float32 payload carries without rounding.
    const bool whole = ranks.combine.forward == comm::Payload::kFloat32;
    back.push_back(comm::start_all_to_all(whole ? made : made.to(rows.scalar_type()),
                                          chunks[i].exchange->reversed(), ranks.combine));
  }
  std::vector<at::Tensor> y;
  for (size_t i = 0; i < chunks.size(); ++i)
    y.push_back(combine_rows(back[i].wait(), chunks[i].weight, chunks[i].to));
  return y;
}

/// Parameters of one expert: up, down and, if any, up_bias and down_bias.
using Parameters = std::vector<at::Tensor>;

Parameters parameters_of(const ExpertWeights& weights, size_t e) {
  if (weights.up_bias.empty()) return {weights.up[e], weights.down[e]};
  return {weights.up[e], weights.down[e], weights.up_bias[e], weights.down_bias[e]};
}

/// Joins slices of an expert's parameters. Slices of up are ranges of rows: of the gate's rows, if
/// any, and of up's own rows.
Parameters joined(const std::vector<Parameters>& slices, const std::string& activation) {
  if (slices.size() == 1) return slices[0];
  std::vector<at::Tensor> up, down;
  for (const Parameters& slice : slices) {
    up.push_back(slice[0].view({mx::up_width(activation, 1), -1, slice[0].size(1)}));
    down.push_back(slice[1]);
  }
  return {at::cat(up, 1).flatten(0, 1), at::cat(down, 1)};
}

/// Gathers `experts` (ascending) as far as this rank receives their slices. Every rank sends its
/// own slices to each rank for which `wants(to, from)` is true. All ranks call it together.
template <class Wants>
ExpertWeights gather_experts(const ExpertWeights& own, const std::vector<int64_t>& experts,
                             const ExpertRanks& ranks, const Wants& wants) {
  const TraceSpan span("gather experts");
  const Placement& placement = ranks.placement;
  const int me = ranks.group->rank();
  const Parameters shapes = parameters_of(own, 0);
  int64_t elements = 0;
  for (const at::Tensor& parameter : shapes) elements += parameter.numel();
  const auto of_holder = [&](int holder) {
    const auto from = std::ranges::lower_bound(experts, placement.first(holder)),
               to = std::ranges::lower_bound(experts, placement.first(holder + 1));
    return std::vector<int64_t>(from, to);
  };
  std::vector<at::Tensor> flat;
  for (const int64_t e : of_holder(placement.holder(me)))
    for (const at::Tensor& parameter :
         parameters_of(own, static_cast<size_t>(e - placement.first(placement.holder(me)))))
      flat.push_back(parameter.reshape({-1}));
  const at::Tensor mine =
      flat.empty() ? at::empty({0}, shapes[0].options().requires_grad(false)) : at::cat(flat);
  comm::Splits splits;
  std::vector<at::Tensor> copies;
  for (int rank = 0; rank < placement.ranks; ++rank) {
    const bool sends = wants(rank, me), receives = wants(me, rank);
    splits.send.push_back(sends ? mine.numel() : 0);
    splits.receive.push_back(receives ? elements * std::ssize(of_holder(placement.holder(rank)))
                                      : 0);
    if (sends) copies.push_back(mine);
  }
  const at::Tensor buffer = copies.empty() ? mine.narrow(0, 0, 0) : at::cat(copies);
  const at::Tensor received = comm::all_to_all_v(buffer, comm::Exchange(ranks.group, splits));

  // One split needs a single concatenation in backward, instead of one operation for each
  // parameter's view.
  std::vector<int64_t> sizes;
  for (int64_t left = received.numel(); left > 0; left -= elements)
    for (const at::Tensor& like : shapes) sizes.push_back(like.numel());
  const auto pieces = received.split_with_sizes(sizes);
  auto piece = pieces.begin();
  std::vector<std::vector<Parameters>> slices(experts.size());
  for (int rank = 0; rank < placement.ranks; ++rank) {
    if (!wants(me, rank)) continue;
    for (const int64_t e : of_holder(placement.holder(rank))) {
      const auto place =
          static_cast<size_t>(std::ranges::lower_bound(experts, e) - experts.begin());
      Parameters& slice = slices[place].emplace_back();
      for (const at::Tensor& like : shapes) slice.push_back((piece++)->view(like.sizes()));
    }
  }
  ExpertWeights out{.activation = own.activation};
  const std::array lists = {&out.up, &out.down, &out.up_bias, &out.down_bias};
  for (const auto& of_expert : slices) {
    const Parameters parameters = joined(of_expert, own.activation);
    for (size_t i = 0; i < parameters.size(); ++i) lists[i]->push_back(parameters[i]);
  }
  return out;
}

std::vector<int64_t> range(int64_t first, int64_t end) {
  std::vector<int64_t> out;
  for (int64_t i = first; i < end; ++i) out.push_back(i);
  return out;
}

void check_layout(const ExpertLayout& layout, const ExpertRanks& ranks, const LocalExperts& local) {
  const int cut = ranks.placement.cut;
  DOVETAIL_CHECK(layout.shards >= 0 && layout.shards <= cut &&
                     (layout.shards == 0 || cut % layout.shards == 0),
                 "r = {} with experts in {} slices", layout.shards, cut);
  DOVETAIL_CHECK(layout.overlap >= 1 && (!layout.hierarchical || ranks.nodes),
                 "overlap {}, or no nodes", layout.overlap);
  const bool quantized = local.modules != nullptr || local.grouped != nullptr;
  DOVETAIL_CHECK(!quantized || (layout.shards == cut && layout.shadowed.empty()),
                 "quantized experts cannot be gathered");
}

}  // namespace

at::Tensor run_experts(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                       const LocalExperts& experts) {
  if (experts.grouped)
    return combine_rows(experts.grouped(dispatch_rows(x, to), groups_of(to)), weight, to);
  return experts.modules ? apply_experts(x, weight, to, experts.modules)
                         : feed_forward(x, weight, to, experts.weights);
}

at::Tensor parallel_feed_forward(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& expert, const at::Tensor& slot,
                                 const LocalExperts& local, const ExpertRanks& ranks,
                                 const ExpertLayout& layout, std::optional<int64_t> capacity) {
  check_layout(layout, ranks, local);
  user_check(
      !x.is_cuda(),
      "experts over ranks have no version for CUDA; train on one rank or on the CPU, x is {}",
      ops::describe(x));
  if (!capacity && operations_are_recorded())
    throw UserError(
        "moe: without padding ranks exchange other numbers of rows in each step, which a recorded "
        "step cannot",
        "pad them (model.moe.pad_to_capacity = true), or train without memory.budget");
  const Placement& placement = ranks.placement;
  const Choices choices{expert, slot};
  const bool gathers_all = layout.shards == 0;
  const std::vector<int64_t> here = gathers_all ? range(0, placement.experts) : layout.shadowed;
  at::Tensor y;
  if (!here.empty()) {
    const ExpertWeights whole =
        gather_experts(local.weights, here, ranks, [](int, int) { return true; });
    const Choices of_here = choices_of_shadowed(choices, placement, here);
    y = feed_forward(x, weight, dispatch(of_here.expert, of_here.slot, std::ssize(here)), whole);
  }
  if (std::ssize(here) == placement.experts) return y;

  LocalExperts mine = local;
  const int copies = placement.cut / layout.shards;
  if (copies > 1) {
    const int holder = placement.holder(ranks.group->rank());
    const auto wants = [&](int to, int from) {
      return placement.holder(to) == placement.holder(from) &&
             placement.slice(from) / copies == placement.slice(to) % layout.shards;
    };
    mine.weights = gather_experts(
        local.weights, range(placement.first(holder), placement.first(holder + 1)), ranks, wants);
  }
  const Parts parts{placement};
  const Choices of_parts = choices_of_parts(choices, placement, layout);
  at::Tensor exchanged;
  if (capacity) {
    auto chunks = make_padded_chunks(x, weight, of_parts, parts.count(), layout, copies, *capacity);
    plan_padded(chunks, ranks, layout);
    for (const at::Tensor& part : exchange_rows(chunks, mine, ranks))
      exchanged = exchanged.defined() ? exchanged + part : part;
  } else {
    auto chunks = make_chunks(x, weight, of_parts, parts.count(), layout);
    exchange_counts(chunks, ranks, layout);
    const auto of_chunks = exchange_rows(chunks, mine, ranks);
    exchanged = of_chunks.size() == 1 ? of_chunks[0] : at::cat(of_chunks);
  }
  return y.defined() ? y + exchanged : exchanged;
}

at::Tensor padded_feed_forward(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                               const LocalExperts& experts) {
  if (experts.grouped) return run_experts(x, weight, to, experts);
  const std::vector<int64_t> counts(static_cast<size_t>(to.experts()), to.capacity());
  const at::Tensor rows = dispatch_rows(x, to);
  if (x.is_cuda() && !experts.modules)
    return combine_rows(feed_forward_rows(rows, counts, experts.weights), weight, to);
  DispatchedRows arrived = arriving({counts}, to.experts());
  arrived.token = arrived.token.to(x.device());
  arrived.choice = arrived.choice.to(x.device());
  const at::Tensor made = run_arrived(rows, arrived, experts, weight.scalar_type());
  return combine_rows(made, weight, to);
}

std::optional<ExpertName> parse_expert_name(std::string_view name) {
  constexpr std::string_view kExperts = ".moe.experts.";
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return std::nullopt;
  ExpertName out{.before = std::string(name.substr(0, at + kExperts.size()))};
  const std::string_view numbered = name.substr(out.before.size());
  const char* end = numbered.data() + numbered.size();
  const auto [after, error] = std::from_chars(numbered.data(), end, out.expert);
  if (error != std::errc() || after == end || *after != '.') return std::nullopt;
  out.rest = std::string(after + 1, end);
  return out;
}

ExpertSlice expert_slice(std::string_view parameter, at::IntArrayRef own_sizes,
                         const std::string& activation, const Placement& placement, int rank) {
  if (parameter == "down.bias")  // only uncut experts have biases
    return {.whole = own_sizes.vec(),
            .outer = 1,
            .hidden = own_sizes[0],
            .first = 0,
            .count = own_sizes[0]};
  const bool down = parameter == "down.weight";
  ExpertSlice slice{.whole = own_sizes.vec(),
                    .outer = down ? own_sizes[0] : mx::up_width(activation, 1)};
  slice.count = down ? own_sizes[1] : own_sizes[0] / slice.outer;
  slice.hidden = slice.count * placement.cut;
  slice.first = slice.count * placement.slice(rank);
  slice.whole[down ? 1 : 0] *= placement.cut;
  return slice;
}

}  // namespace dovetail::moe
