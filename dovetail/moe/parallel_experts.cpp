#include "dovetail/moe/parallel_experts.h"

#include <ATen/ATen.h>

#include <charconv>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/moe/gathered_experts.h"
#include "dovetail/moe/parts.h"
#include "dovetail/moe/row_exchange.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

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
  if (!capacity && operations_are_recorded())
    throw UserError(
        "moe: without padding ranks exchange other numbers of rows in each step, which a recorded "
        "step cannot",
        "pad them (model.moe.pad_to_capacity = true), or train without memory.budget");
  const Placement& placement = ranks.placement;
  if (layout.shards == 0) {
    return with_all_experts(local.weights, ranks, [&](const ExpertWeights& all) {
      return feed_forward(x, weight, dispatch(expert, slot, placement.experts), all);
    });
  }
  // The rows of other ranks are planned on the CPU: a GPU waits here for the choices.
  const Choices choices{expert.cpu(), slot.cpu()};
  at::Tensor y;
  if (!layout.shadowed.empty()) {
    const ExpertWeights shadowed =
        gather_slices(local.weights, layout.shadowed, ranks, [](int, int) { return true; });
    const Choices here = choices_of_shadowed(choices, placement, layout.shadowed);
    y = feed_forward(
        x, weight,
        dispatch(here.expert.to(x.device()), here.slot.to(x.device()), std::ssize(layout.shadowed)),
        shadowed);
    if (std::ssize(layout.shadowed) == placement.experts) return y;
  }

  LocalExperts mine = local;
  const int copies = placement.cut / layout.shards;
  if (copies > 1) {
    const int holder = placement.holder(ranks.group->rank());
    const auto wants = [&](int to, int from) {
      return placement.holder(to) == placement.holder(from) &&
             placement.slice(from) / copies == placement.slice(to) % layout.shards;
    };
    mine.weights = gather_slices(
        local.weights, range(placement.first(holder), placement.first(holder + 1)), ranks, wants);
  }
  const at::Tensor exchanged = exchange_rows(
      x, weight, choices_of_parts(choices, placement, layout), mine, ranks, layout, capacity);
  return y.defined() ? y + exchanged : exchanged;
}

at::Tensor padded_feed_forward(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                               const LocalExperts& experts) {
  if (experts.grouped) return run_experts(x, weight, to, experts);
  const std::vector<int64_t> counts(static_cast<size_t>(to.experts()), to.capacity());
  const at::Tensor rows = dispatch_rows(x, to);
  if (x.is_cuda() && !experts.modules)
    return combine_rows(feed_forward_rows(rows, counts, experts.weights), weight, to);
  const DispatchedRows arrived =
      on_device(arriving({counts}, to.experts()), rows.size(0), 1, x.device());
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
