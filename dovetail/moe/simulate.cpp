#include "dovetail/moe/simulate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/moe/placement.h"

namespace dovetail::moe {
namespace {

using Seconds = std::vector<double>;  // seconds of each rank

/// Arrangement of the ranks in nodes.
struct Nodes {
  int size, count;  // ranks per node, number of nodes
  Nodes(const comm::CostModel& model, int ranks)
      : size(std::min(ranks, model.ranks_per_node)),
        count(ranks / std::min(ranks, model.ranks_per_node)) {
    user_check(ranks % size == 0, "simulate: {} ranks do not fill nodes of {}", ranks, size);
    user_check(
        count == 1 || model.between.has_value(),
        "simulate: {} ranks are {} nodes of {}, but the cost model has no link between nodes",
        ranks, count, size);
  }
  int ranks() const { return size * count; }
};

/// Stage of an exchange. `among` is the group of ranks that must have started before a rank of the
/// group can finish. kPlace: ranks with the same index in their nodes. Times are the seconds of
/// each rank.
struct Stage {
  enum class Among { kAll, kNode, kPlace } among;
  Seconds copy, send, receive;
};

size_t index(int i) { return static_cast<size_t>(i); }

Placement placement_of(const LayerLoad& load) {
  user_check(load.ranks >= 1 && load.experts >= 1, "simulate: {} experts and {} ranks",
             load.experts, load.ranks);
  const int least = (load.ranks + load.experts - 1) / load.experts;
  const Placement placement{.experts = load.experts,
                            .ranks = load.ranks,
                            .cut = load.cut == 0 ? std::max(1, least) : load.cut};
  user_check(load.ranks % placement.cut == 0 && placement.holders() <= load.experts,
             "simulate: {} experts, {} ranks for each, do not fit {} ranks", load.experts,
             placement.cut, load.ranks);
  return placement;
}

Seconds run_stage(const Stage& stage, const Nodes& nodes, const Seconds& start) {
  const auto group_of = [&](int rank) {
    return stage.among == Stage::Among::kAll    ? 0
           : stage.among == Stage::Among::kNode ? rank / nodes.size
                                                : rank % nodes.size;
  };
  std::vector<double> last(index(nodes.ranks()), 0);  // latest start of each group
  for (int r = 0; r < nodes.ranks(); ++r)
    last[index(group_of(r))] =
        std::max(last[index(group_of(r))], start[index(r)] + stage.copy[index(r)]);
  Seconds end(start.size());
  for (int r = 0; r < nodes.ranks(); ++r) {
    const size_t i = index(r);
    end[i] = std::max(start[i] + stage.copy[i] + stage.send[i],
                      last[index(group_of(r))] + stage.receive[i]);
  }
  return end;
}

/// Returns the stages of `calls` exchanges that start together. In them every rank sends b[p] bytes
/// to rank p.
std::vector<Stage> dispatch_stages(const comm::CostModel& model, const Nodes& nodes,
                                   comm::AllToAllAlgorithm algorithm, const std::vector<double>& b,
                                   int calls) {
  const int ranks = nodes.ranks(), m = nodes.size, n = nodes.count;
  const comm::Link between = model.between.value_or(comm::Link{.bytes_per_s = 1e30});
  const double all = std::accumulate(b.begin(), b.end(), 0.0);
  std::vector<double> of_node(index(n), 0), of_place(index(m), 0);
  for (int p = 0; p < ranks; ++p) {
    of_node[index(p / m)] += b[index(p)];
    of_place[index(p % m)] += b[index(p)];
  }
  const Seconds none(index(ranks), 0);
  if (!comm::is_hierarchical(algorithm)) {
    Stage stage{Stage::Among::kAll, none, none, none};
    for (int p = 0; p < ranks; ++p) {
      const size_t i = index(p);
      const double near = of_node[index(p / m)] - b[i], far = all - of_node[index(p / m)];
      stage.send[i] =
          model.inside.seconds(calls * (m - 1), near) + between.seconds(calls * (ranks - m), far);
      stage.receive[i] = model.inside.seconds(calls * (m - 1), (m - 1) * b[i]) +
                         between.seconds(calls * (ranks - m), (ranks - m) * b[i]);
    }
    return {stage};
  }
  Stage inside{Stage::Among::kNode, none, none, none}, far{Stage::Among::kPlace, none, none, none};
  for (int p = 0; p < ranks; ++p) {
    const size_t i = index(p);
    const double place = of_place[index(p % m)];
    inside.copy[i] = all / model.copy_bytes_per_s;
    inside.send[i] = model.inside.seconds(calls * (m - 1), all - place);
    inside.receive[i] = model.inside.seconds(calls * (m - 1), (m - 1) * place);
    far.copy[i] = m * place / model.copy_bytes_per_s;
    far.send[i] = between.seconds(calls * (n - 1), m * (place - b[i]));
    far.receive[i] = between.seconds(calls * (n - 1), (n - 1) * m * b[i]);
  }
  return {inside, far};
}

/// Returns the stages of the way back: in reverse order, with send and receive swapped.
std::vector<Stage> reversed(std::vector<Stage> stages) {
  std::reverse(stages.begin(), stages.end());
  for (auto& stage : stages) std::swap(stage.send, stage.receive);
  return stages;
}

Seconds run(const std::vector<Stage>& stages, const Nodes& nodes, Seconds time) {
  for (const auto& stage : stages) time = run_stage(stage, nodes, time);
  return time;
}

/// Work of a load under a plan: rows and parameters by rank.
struct Work {
  // Rows, and choices of these rows, that each rank sends to rank p in a forward pass.
  std::vector<double> rows_to, choices_to;
  std::vector<double> compute_s;  // by rank: seconds of forward for received rows
  double local_s = 0;  // seconds for rows that are not sent: rows of shadowed experts, or all rows
  double parameters_s = 0;  // seconds to send experts once
  double gradients_s = 0;   // seconds to send their gradients, and to gather experts for backward
  double chunk_s = 0;       // seconds of backward to add the gradients of one more chunk
};

bool travels_once(const LayerLoad& load) { return load.once_per_rank && load.capacity == 0; }

class Builder {
 public:
  Builder(const comm::CostModel& model, const LayerLoad& load, const LayerPlan& plan)
      : model_(model), load_(load), plan_(plan), nodes_(model, load.ranks) {
    const int e = load.experts;
    placement_ = placement_of(load);
    user_check(plan.overlap >= 1 && plan.overlap <= 8, "simulate: overlap {} is not from 1 to 8",
               plan.overlap);
    user_check(plan.shards >= 0 && (plan.shards == 0 || placement_.cut % plan.shards == 0),
               "simulate: r = {} does not divide the {} ranks of an expert", plan.shards,
               placement_.cut);
    user_check(plan.shadowed >= 0 && plan.shadowed < e, "simulate: {} of {} experts shadowed",
               plan.shadowed, e);
    share_ = load.choices_of;
    if (share_.empty())
      for (int i = 0; i < e; ++i) share_.push_back(std::pow(i + 1.0, -load.skew));
    user_check(std::ssize(share_) == e, "simulate: the load of {} experts for {}", share_.size(),
               e);
    const double sum = std::accumulate(share_.begin(), share_.end(), 0.0);
    for (double& share : share_) share = sum > 0 ? share / sum : 1.0 / e;
    shadowed_.assign(index(e), false);
    for (const int64_t i : experts_by_load(share_, plan.shadowed))
      shadowed_[static_cast<size_t>(i)] = true;
  }

  const Nodes& nodes() const { return nodes_; }

  Work build() const {
    Work work{.rows_to = std::vector<double>(index(load_.ranks), 0),
              .choices_to = std::vector<double>(index(load_.ranks), 0),
              .compute_s = std::vector<double>(index(load_.ranks), 0)};
    if (plan_.shards == 0) {
      for (int e = 0; e < load_.experts; ++e)
        work.local_s += expert_s(choices() * share_[index(e)], 1, 1);
      const double bytes = load_.experts * expert_bytes();
      work.parameters_s = all_ranks_s(model_.gather, bytes);
      work.gradients_s = work.parameters_s + all_ranks_s(model_.reduce, bytes);
      return work;
    }
    for (int e = 0; e < load_.experts; ++e)
      if (shadowed_[index(e)]) work.local_s += expert_s(choices() * share_[index(e)], 1, 1);
    work.parameters_s = shadow_s();
    if (placement_.cut > plan_.shards) {
      const auto experts =
          static_cast<double>(placement_.count(placement_.holders() - 1));  // maximum of any holder
      work.parameters_s += gather_s(placement_.cut / plan_.shards,
                                    experts * expert_bytes() / plan_.shards, /*near=*/true);
    }
    work.gradients_s = work.parameters_s;
    for (int p = 0; p < load_.ranks; ++p) add_rank(work, p);
    share_cores(work.compute_s);
    // Each chunk makes gradients of all experts, which are added to the gradients so far.
    work.chunk_s = static_cast<double>(placement_.count(placement_.holders() - 1)) *
                   expert_bytes() / plan_.shards / model_.copy_bytes_per_s;
    return work;
  }

 private:
  double choices() const { return static_cast<double>(load_.tokens) * load_.top_k; }
  double expert_bytes() const {
    return 2.0 * static_cast<double>(load_.width) * static_cast<double>(load_.hidden) *
           load_.parameter_bytes;
  }

  /// Seconds of two products of `rows` rows with 1 / `shards` of an expert, in `pieces` pieces.
  double expert_s(double rows, int shards, int pieces) const {
    const double flops =
        4.0 * rows * static_cast<double>(load_.width) * static_cast<double>(load_.hidden) / shards;
    return 2.0 * pieces * model_.call_s + flops / model_.flops;
  }

  void add_rank(Work& work, int p) const {
    const int holder = placement_.holder(p),
              pieces = comm::is_flexible(plan_.algorithm) ? 1 : load_.ranks;
    double share = 0;
    for (int64_t e = placement_.first(holder); e < placement_.first(holder + 1); ++e) {
      if (shadowed_[static_cast<size_t>(e)]) continue;
      share += share_[static_cast<size_t>(e)];
      // Each group of ranks that holds the whole expert gets its share of the rows.
      const double from_each =
          (load_.capacity > 0 ? load_.capacity : choices() * share_[static_cast<size_t>(e)]) *
          plan_.shards / placement_.cut;
      work.choices_to[index(p)] += from_each;
      work.compute_s[index(p)] +=
          expert_s(from_each * load_.ranks, plan_.shards, pieces * plan_.overlap);
    }
    work.rows_to[index(p)] = travels_once(load_)
                                 ? rows_of_share(share * plan_.shards / placement_.cut)
                                 : work.choices_to[index(p)];
  }

  /// Expected number of a rank's tokens with one or more choices in `share` of all choices. A
  /// token's choices are different experts: for equal shares the result is exact.
  double rows_of_share(double share) const {
    double none = 1;
    for (int i = 0; i < std::min(load_.top_k, load_.experts); ++i)
      none *= 1 - std::min(1.0, share * load_.experts / (load_.experts - i));
    return static_cast<double>(load_.tokens) * (1 - none);
  }

  /// compute_s: seconds of each rank's work while all compute. Replaces them by the times at which
  /// the ranks are done. Ranks that are done leave their cores to the others.
  void share_cores(std::vector<double>& compute_s) const {
    const double alone = std::max(1.0, model_.flops_alone / model_.flops);
    std::vector<size_t> order(compute_s.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [&](size_t p) { return compute_s[p]; });
    double done = 0, time = 0;  // work of each rank so far, and the seconds that it took
    for (size_t i = 0; i < order.size(); ++i) {
      const auto active = static_cast<double>(order.size() - i);
      const double rate = std::min(alone, static_cast<double>(order.size()) / active);
      time += (compute_s[order[i]] - done) / rate;
      done = std::exchange(compute_s[order[i]], time);
    }
  }

  /// Seconds of a collective over all ranks that gathers or scatters `bytes`, by its measured link.
  double all_ranks_s(const std::optional<comm::Link>& link, double bytes) const {
    if (load_.ranks == 1) return 0;
    const double n = load_.ranks;
    return link ? link->seconds(n - 1, bytes * (n - 1) / n)
                : gather_s(load_.ranks, bytes, /*near=*/false);
  }

  /// Seconds of a ring all-gather over n ranks. Each rank contributes 1/n of `bytes`.
  double gather_s(int n, double bytes, bool near) const {
    if (n == 1) return 0;
    const bool inside = nodes_.count == 1 || (near && placement_.cut <= nodes_.size);
    return (inside ? model_.inside : *model_.between).seconds(n - 1, bytes * (n - 1) / n);
  }

  /// Seconds in which the owners of shadowed experts send their slices to every other rank.
  double shadow_s() const {
    const int m = nodes_.size, far = load_.ranks - m;
    const double slice = expert_bytes() / placement_.cut;
    double all = 0, slowest = 0;
    std::vector<double> own(index(load_.ranks), 0);
    for (int p = 0; p < load_.ranks; ++p) {
      const int holder = placement_.holder(p);
      for (int64_t e = placement_.first(holder); e < placement_.first(holder + 1); ++e)
        if (shadowed_[static_cast<size_t>(e)]) own[index(p)] += slice;
      all += own[index(p)];
    }
    if (all == 0 || load_.ranks == 1) return 0;
    for (int p = 0; p < load_.ranks; ++p) {
      double of_node = 0;
      for (int q = p / m * m; q < (p / m + 1) * m; ++q) of_node += own[index(q)];
      const double sent = model_.inside.seconds(m - 1, (m - 1) * own[index(p)]) +
                          between_s(far, far * own[index(p)]),
                   received = model_.inside.seconds(m - 1, of_node - own[index(p)]) +
                              between_s(far, all - of_node);
      slowest = std::max({slowest, sent, received});
    }
    return slowest;
  }
  double between_s(double messages, double bytes) const {
    return nodes_.count == 1 ? 0 : model_.between->seconds(messages, bytes);
  }

  const comm::CostModel& model_;
  const LayerLoad& load_;
  const LayerPlan& plan_;
  Nodes nodes_;
  Placement placement_;
  std::vector<double> share_;
  std::vector<bool> shadowed_;
};

/// Exchanges of a pass: to the experts and back.
struct Exchanges {
  std::vector<Stage> there, back;
};

/// Simulates forward or backward of the layer. `work_factor` is 1 for forward and 2 for backward.
/// Experts are sent before forward, their gradients after backward. `hides`: exchanges run beside
/// computation.
double pass_s(const Exchanges& exchanges, const Nodes& nodes, const Work& work, int overlap,
              double work_factor, bool hides) {
  const bool forward = work_factor == 1;
  const auto ranks = index(nodes.ranks());
  Seconds comm(ranks, forward ? work.parameters_s : 0),
      compute(ranks, comm[0] + work_factor * work.local_s);
  std::vector<Seconds> computed(index(overlap));
  const auto wait = [&] {  // without hiding, one stream waits for the other
    if (hides) return;
    for (size_t p = 0; p < ranks; ++p) comm[p] = compute[p] = std::max(comm[p], compute[p]);
  };
  const auto dispatch = [&](int chunk) {
    wait();
    comm = run(exchanges.there, nodes, comm);
    for (size_t p = 0; p < ranks; ++p)
      compute[p] = std::max(compute[p], comm[p]) + work_factor * work.compute_s[p] / overlap;
    computed[index(chunk)] = compute;
  };
  const auto combine = [&](int chunk) {
    wait();
    for (size_t p = 0; p < ranks; ++p) comm[p] = std::max(comm[p], computed[index(chunk)][p]);
    comm = run(exchanges.back, nodes, comm);
  };
  for (int chunk = 0; chunk < overlap; ++chunk) {
    dispatch(chunk);
    if (chunk > 0) combine(chunk - 1);
  }
  combine(overlap - 1);
  double end = 0;
  for (size_t p = 0; p < ranks; ++p) end = std::max({end, comm[p], compute[p]});
  return end + (forward ? 0 : work.gradients_s + (overlap - 1) * work.chunk_s);
}

}  // namespace

LayerTime simulate(const comm::CostModel& model, const LayerLoad& load, const LayerPlan& plan) {
  const Builder builder(model, load, plan);
  const auto& nodes = builder.nodes();
  const auto work = builder.build();
  LayerTime time{.plan = plan};
  const double busiest = *std::max_element(work.compute_s.begin(), work.compute_s.end());
  time.compute_s = 3 * (busiest + work.local_s);
  if (plan.shards == 0 || load.ranks == 1) {
    time.forward_s = work.parameters_s + work.local_s + busiest;
    time.backward_s = work.gradients_s + 2 * (work.local_s + busiest);
    return time;
  }
  const bool once = travels_once(load);
  // Stages of `calls` exchanges that send rows and, for each choice, `choice_bytes`.
  const auto stages = [&](double row_bytes, double choice_bytes, int calls) {
    auto bytes = work.rows_to;
    for (size_t p = 0; p < bytes.size(); ++p)
      bytes[p] =
          (bytes[p] * row_bytes + (once ? work.choices_to[p] * choice_bytes : 0)) / plan.overlap;
    return dispatch_stages(model, nodes, plan.algorithm, bytes, once ? calls : 1);
  };
  // Rows travel with an index of 4 bytes and a weight of 4 for each choice. Backward returns the
  // weight's gradient.
  const Exchanges forward{stages(load.row_bytes, 8, 3),
                          reversed(stages(load.other_row_bytes, 0, 1))},
      backward{stages(load.other_row_bytes, 0, 1), reversed(stages(load.other_row_bytes, 4, 2))};
  const auto seconds = [&](const Exchanges& exchanges, double work_factor) {
    const double hidden = pass_s(exchanges, nodes, work, plan.overlap, work_factor, true),
                 serial = pass_s(exchanges, nodes, work, plan.overlap, work_factor, false);
    return serial - model.overlap_share * (serial - hidden);
  };
  time.forward_s = seconds(forward, 1);
  time.backward_s = seconds(backward, 2);
  return time;
}

std::vector<int64_t> experts_by_load(const std::vector<double>& choices, int count) {
  std::vector<int64_t> experts(choices.size());
  std::iota(experts.begin(), experts.end(), int64_t{0});
  std::stable_sort(experts.begin(), experts.end(), [&](int64_t a, int64_t b) {
    return choices[static_cast<size_t>(a)] > choices[static_cast<size_t>(b)];
  });
  experts.resize(std::min(experts.size(), static_cast<size_t>(count)));
  std::sort(experts.begin(), experts.end());
  return experts;
}

std::vector<LayerTime> simulate_all(const comm::CostModel& model, const LayerLoad& load,
                                    int most_shadowed) {
  std::vector<LayerTime> times = {simulate(model, load, {.shards = 0})};
  const int cut = placement_of(load).cut;
  for (const auto algorithm :
       {comm::AllToAllAlgorithm::kLinear, comm::AllToAllAlgorithm::kHierarchical,
        comm::AllToAllAlgorithm::kFlexible, comm::AllToAllAlgorithm::kHierarchicalFlexible})
    for (int overlap = 1; overlap <= 8; ++overlap)
      for (int shards = 1; shards <= cut; ++shards) {
        if (cut % shards != 0) continue;
        for (int shadowed = 0; shadowed <= most_shadowed && shadowed < load.experts;
             shadowed += std::max(1, shadowed))
          times.push_back(simulate(model, load,
                                   {.algorithm = algorithm,
                                    .overlap = overlap,
                                    .shards = shards,
                                    .shadowed = shadowed}));
      }
  std::stable_sort(times.begin(), times.end(), [](const LayerTime& a, const LayerTime& b) {
    return a.total_s() < b.total_s();
  });
  return times;
}

}  // namespace dovetail::moe
