#include "dovetail/plan/solve/joint_program.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <span>

#include "dovetail/base/error.h"
#include "dovetail/plan/solve/search.h"

namespace dovetail::plan {
namespace {

// Stages; with more, the program is looser.
constexpr int kSmall = 64, kMedium = 128;
// Levels of repeated runs that provide inputs of other runs, in medium and in large steps.
constexpr int kRunDepthOfMedium = 16, kRunDepth = 6;
constexpr int kPeaks = 8;

/// Splits stages from `last` back to `first` into segments: `single` ones of one stage, then longer
/// ones.
std::vector<std::pair<int, int>> segments(int first, int last, size_t single) {
  std::vector<std::pair<int, int>> out;
  for (int length = 1; last >= first; last -= length) {
    if (out.size() >= single) length = 1 << ((out.size() - single) / 2 + 1);
    out.emplace_back(std::max(first, last - length + 1), last);
  }
  return out;
}

/// Splits segments so that a stage of `ends` is the last of its segment.
std::vector<std::pair<int, int>> split(const std::vector<std::pair<int, int>>& segments,
                                       const std::vector<bool>& ends) {
  std::vector<std::pair<int, int>> out;
  for (auto [first, last] : segments) {
    for (int stage = last - 1; stage >= first; --stage)
      if (ends[stage]) {
        out.emplace_back(stage + 1, last);
        last = stage;
      }
    out.emplace_back(first, last);
  }
  return out;
}

double best_algorithm_s(const GraphNode& node) {
  double out = node.algorithms[0].time_s;
  for (const Algorithm& algorithm : node.algorithms) out = std::min(out, algorithm.time_s);
  return out;
}

}  // namespace

JointProgram::JointProgram(const Graph& graph, const Scheduler& scheduler,
                           const SolveOptions& options, double longest_s)
    : graph_(graph),
      scheduler_(scheduler),
      gaps_(scheduler.gaps()),
      options_(options),
      longest_s_(longest_s * (1 + 1e-9)),
      unit_s_(longest_s / kUnits),
      unit_bytes_(static_cast<double>(graph.budget_bytes) / kUnits),
      stages_(static_cast<int>(graph.nodes.size())),
      columns_(scheduler.gaps().size()) {
  find_bytes_at_start();
  find_tight_stages();
  add_clocks();
  add_algorithms();
  add_gaps();
  add_jobs();
  add_runs();
  add_choices();
  add_inputs_of_runs();
  add_times();
  add_fetch_stream();
  add_offload_stream();
  add_offload_load();
  add_memory();
}

int JointProgram::gap_at(int tensor, int stage) const {
  for (const int g : scheduler_.gaps_of_[tensor])
    if (covers(g, stage)) return g;
  return -1;
}

void JointProgram::find_tight_stages() {
  const Decisions keep_all{.gaps = std::vector<Keep>(gaps_.size()),
                           .codec = std::vector<int>(gaps_.size()),
                           .algorithms = std::vector<int>(graph_.nodes.size())};
  const auto kept = scheduler_.schedule(keep_all, kNoBudget);
  DOVETAIL_CHECK(kept.has_value(), "a step that keeps all does not run");
  std::vector<int64_t> most;
  for (int n = 0; n < stages_; ++n) {
    const GraphNode& node = graph_.nodes[n];
    kept_bytes_.push_back(kept->slot_bytes[n] - node.algorithms[0].workspace_bytes);
    most.push_back(0);
    for (const Algorithm& algorithm : node.algorithms)
      most[n] = std::max(most[n], kept_bytes_[n] + algorithm.workspace_bytes);
    tight_.push_back(most[n] > graph_.budget_bytes);
  }
  std::vector<int> stages(stages_);
  std::iota(stages.begin(), stages.end(), 0);
  std::ranges::stable_sort(stages, std::greater(), [&](int n) { return most[n]; });
  peaks_.resize(stages_);
  for (const int n : std::span(stages).first(std::min(kPeaks, stages_))) peaks_[n] = tight_[n];
  leave_out_the_smallest();
}

/// Leaves out the smallest storages, which need many columns for little memory.
void JointProgram::leave_out_the_smallest() {
  constexpr int64_t kPart = 1000;  // inverse share of the budget
  left_out_.resize(gaps_.size());
  if (stages_ <= kSmall) return;
  std::vector<std::pair<int64_t, int>> sizes;
  for (size_t g = 0; g < gaps_.size(); ++g) {
    const int64_t size = graph_.tensors[gaps_[g].tensor].bytes;
    if (size >= options_.least_bytes) sizes.emplace_back(size, static_cast<int>(g));
  }
  std::sort(sizes.begin(), sizes.end());
  int64_t left = graph_.budget_bytes / kPart;
  for (const auto& [size, g] : sizes) {
    left -= size;
    if (left < 0) return;
    left_out_[g] = true;
    if (gaps_[g].wraps) bytes_at_start_ -= size;
    // Before its first use a tensor that wraps has two gaps. Count one.
    if (gaps_[g].from < 0 && !gaps_[g].wraps && scheduler_.wrapped_gap(gaps_[g].tensor) >= 0)
      continue;
    for (int n = 0; n < stages_; ++n)
      if (covers(g, n)) kept_bytes_[n] -= size;
  }
}

void JointProgram::find_bytes_at_start() {
  bytes_at_start_ = graph_.base_bytes;
  for (const GraphTensor& tensor : graph_.tensors)
    if (tensor.alias_of < 0 && resident_at_start(tensor.kind)) bytes_at_start_ += tensor.bytes;
}

void JointProgram::add_clocks() {
  double at_s = 0;
  for (const GraphNode& node : graph_.nodes) {
    soonest_s_.push_back(at_s);
    at_s += best_algorithm_s(node);
  }
  soonest_s_.push_back(at_s);
  for (int n = 0; n <= stages_; ++n) {
    const double latest_s = longest_s_ - (at_s - soonest_s_[n]);
    begin_.push_back(clock(soonest_s_[n], latest_s));
    if (n < stages_) start_.push_back(clock(soonest_s_[n], latest_s));
  }
  end_ = program_.add_column(1, time(at_s), time(longest_s_), false);
  at_least({{end_, 1}, {begin_[stages_], -1}}, 0);
}

void JointProgram::add_algorithms() {
  choice_.resize(graph_.nodes.size());
  only_.resize(graph_.nodes.size());
  for (int n = 0; n < stages_; ++n) {
    const auto& algorithms = graph_.nodes[n].algorithms;
    const auto before = [&](size_t a, size_t b) {  // by time, then by workspace
      return std::pair(algorithms[a].time_s, algorithms[a].workspace_bytes) <
             std::pair(algorithms[b].time_s, algorithms[b].workspace_bytes);
    };
    only_[n] = fastest_algorithm(graph_.nodes[n]);
    // Algorithms that no other one dominates in time and workspace, with the same tensors on the
    // host.
    std::vector<size_t> of_use;
    for (size_t a = 0; a < algorithms.size(); ++a)
      if (may_be_chosen(graph_, scheduler_, n, static_cast<int>(a), options_) &&
          std::none_of(algorithms.begin(), algorithms.end(), [&](const Algorithm& other) {
            const auto b = static_cast<size_t>(&other - algorithms.data());
            return other.time_s <= algorithms[a].time_s &&
                   other.workspace_bytes <= algorithms[a].workspace_bytes &&
                   other.on_host == algorithms[a].on_host &&
                   (before(b, a) || (b < a && !before(a, b)));
          }))
        of_use.push_back(a);
    if (of_use.size() < 2) continue;  // only the fastest is left
    choice_[n].assign(algorithms.size(), -1);
    Entries one;
    for (const size_t a : of_use) one.emplace_back(choice_[n][a] = binary(), 1);
    program_.add_row(1, 1, std::move(one));
  }
}

void JointProgram::add_gaps() {
  for (size_t g = 0; g < gaps_.size(); ++g) {
    GapColumns& gap = columns_[g];
    const GraphTensor& tensor = graph_.tensors[gaps_[g].tensor];
    if (tensor.bytes < options_.least_bytes || left_out_[g]) continue;
    const bool may_leave = may_be_offloaded(graph_, gaps_[g], options_);
    if (gaps_[g].wraps && !may_leave) continue;
    // A tensor that starts on the host saves the copy of any other gap. A tensor that is found
    // there needs no memory and no copy back.
    const auto together =
        gaps_[g].wraps ? scheduler_.gaps_of_[gaps_[g].tensor] : std::vector{static_cast<int>(g)};
    gap.moves = gaps_[g].wraps && bytes_at_start_ > graph_.budget_bytes;
    for (int n = 0; n < stages_; ++n) {
      gap.moves = gap.moves || !on_host(n, gaps_[g].tensor).empty();
      for (const int other : together) gap.moves = gap.moves || (tight_[n] && covers(other, n));
    }
    if (!gap.moves) continue;
    gap.keep = binary();
    if (may_leave) {
      gap.host = binary();
      add_slots(static_cast<int>(g));
    }
    gap.packed.assign(graph_.codecs.size(), -1);
    for (int c = 0; c < static_cast<int>(graph_.codecs.size()) && options_.compress; ++c)
      if (may_be_packed(graph_, gaps_[g], c)) gap.packed[c] = binary();
  }
  // A tensor that a node finds on the host stays there before the node and at the step's ends.
  for (int n = 0; n < stages_; ++n)
    for (size_t a = 0; a < choice_[n].size(); ++a) {
      if (choice_[n][a] < 0) continue;
      for (const int t : graph_.nodes[n].algorithms[a].on_host)
        for (const int g : scheduler_.gaps_on_host(n, t)) {
          if (left_out_[g]) continue;
          if (columns_[g].host < 0)
            at_most({{choice_[n][a], 1}}, 0);
          else
            at_least({{columns_[g].host, 1}, {choice_[n][a], -1}}, 0);
        }
    }
}

JointProgram::Entries JointProgram::on_host(int node, int tensor) const {
  Entries out;
  for (size_t a = 0; a < choice_[node].size(); ++a)
    if (choice_[node][a] >= 0 && graph_.nodes[node].algorithms[a].finds_on_host(tensor))
      out.emplace_back(choice_[node][a], 1);
  return out;
}

void JointProgram::add_slots(int g) {
  GapColumns& gap = columns_[g];
  const size_t single = stages_ > kSmall ? 4 : 8;
  Entries fetched = {{gap.host, -1}};
  for (const auto& [first, last] : split(segments(first_fetch(g), gaps_[g].to, single), peaks_)) {
    gap.fetches.push_back({first, last, binary()});
    fetched.emplace_back(gap.fetches.back().column, 1);
  }
  // There is no fetch if the reader finds the tensor on the host.
  const Entries found = on_host(gaps_[g].to, gaps_[g].tensor);
  fetched.insert(fetched.end(), found.begin(), found.end());
  program_.add_row(0, found.empty() ? 0 : LinearProgram::kInfinity, std::move(fetched));
  if (!found.empty()) {
    Entries once = {{gap.host, -1}};
    for (const Slot& slot : gap.fetches) once.emplace_back(slot.column, 1);
    at_most(std::move(once), 0);
  }
  // Stages by which the copy has left, among stages at which memory counts. The first ones have a
  // column each.
  std::vector<int> tight;
  for (int n = gaps_[g].from + 1; n < (gaps_[g].wraps ? stages_ : gaps_[g].to); ++n)
    if (tight_[n]) tight.push_back(n);
  int later = gap.host;
  const auto all = segments(0, static_cast<int>(tight.size()) - 1, single);
  for (const auto& segment : all) {  // mirrored: short segments come first
    const int n = tight[tight.size() - 1 - static_cast<size_t>(segment.first)];
    gap.ended[n] = binary();
  }
  for (auto ended = gap.ended.rbegin(); ended != gap.ended.rend(); ++ended) {
    at_least({{later, 1}, {ended->second, -1}}, 0);
    later = ended->second;
  }
}

void JointProgram::add_jobs() {
  // Versions of storages, in the order in which their copies are issued.
  std::map<std::array<int, 4>, std::vector<int>> versions;
  for (size_t g = 0; g < gaps_.size(); ++g) {
    if (columns_[g].host < 0) continue;
    const int t = gaps_[g].tensor;
    int made_by = scheduler_.producer_[t], mutates = 0, place = t;
    for (const int writer : scheduler_.writers_[t])
      if (writer <= gaps_[g].from) made_by = writer, mutates = 1;
    if (made_by >= 0) {
      const GraphNode& node = graph_.nodes[made_by];
      const auto& list = mutates != 0 ? node.mutates : node.outputs;
      for (place = 0; graph_.root(list[place]) != t;) ++place;
    }
    if (made_by >= 0 || !gaps_[g].wraps)
      versions[{made_by, mutates, place, t}].push_back(static_cast<int>(g));
  }
  for (auto& [key, gaps] : versions) {
    // There is no copy if the tensor starts on the host unchanged, or was changed there.
    Entries there = key[0] < 0 ? Entries() : on_host(key[0], key[3]);
    if (key[0] < 0 && host_at_start(key[3]) >= 0) there.emplace_back(host_at_start(key[3]), 1);
    Job job{.tensor = key[3],
            .made_by = key[0],
            .column = columns_[gaps[0]].host,
            .end = clock(0, longest_s_),
            .optional = !there.empty()};
    if (gaps.size() > 1 || job.optional) {
      job.column = binary();
      for (const int g : gaps) {
        Entries copied = {{job.column, 1}, {columns_[g].host, -1}};
        copied.insert(copied.end(), there.begin(), there.end());
        at_least(std::move(copied), 0);
      }
    }
    for (const int g : gaps) columns_[g].job = static_cast<int>(jobs_.size());
    job.gaps = std::move(gaps);
    jobs_.push_back(std::move(job));
  }
}

bool JointProgram::may_run(int node, int stage) const {
  if (node < 0 || graph_.nodes[node].runs_once()) return false;
  for (const int t : scheduler_.reads_[node])
    for (const int writer : scheduler_.writers_[t])
      if (writer >= node && writer < stage) return false;
  for (const int t : graph_.nodes[node].outputs)
    for (const int writer : scheduler_.writers_[graph_.root(t)])
      if (writer < stage) return false;
  return true;
}

bool JointProgram::present(int tensor, int stage) const {
  return scheduler_.stays_[tensor] || scheduler_.last_use_[tensor] >= stage;
}

/// Adds a repeated run, with the runs that provide its inputs. Returns false if the node cannot run
/// again at this stage.
bool JointProgram::add_run(int node, int stage, int depth) {
  if (runs_.contains({stage, node})) return true;
  if (!may_run(node, stage)) return false;
  if (stages_ > kSmall && depth > (stages_ > kMedium ? kRunDepth : kRunDepthOfMedium)) {
    free_runs_.insert({stage, node});
    return true;
  }
  for (const int t : scheduler_.reads_[node]) {
    const int gap = gap_at(t, stage);
    if (!present(t, stage) && !add_run(scheduler_.producer_[t], stage, depth + 1)) return false;
    if (gap >= 0 && columns_[gap].moves) add_run(scheduler_.producer_[t], stage, depth + 1);
  }
  runs_[{stage, node}] = binary();
  return true;
}

void JointProgram::add_runs() {
  if (!options_.recompute) return;
  for (size_t g = 0; g < gaps_.size(); ++g)
    if (columns_[g].moves && scheduler_.can_be_recomputed(static_cast<int>(g)) &&
        add_run(scheduler_.producer_[gaps_[g].tensor], gaps_[g].to, 0))
      columns_[g].again = binary();
  for (size_t g = 0; g < gaps_.size(); ++g) {
    GapColumns& gap = columns_[g];
    if (gap.again < 0) continue;
    at_least({{runs_.at({gaps_[g].to, scheduler_.producer_[gaps_[g].tensor]}), 1}, {gap.again, -1}},
             0);
    for (int n = gaps_[g].from + 1; n < gaps_[g].to; ++n) {
      const auto run = runs_.find({n, scheduler_.producer_[gaps_[g].tensor]});
      if (run == runs_.end()) continue;
      gap.again_early[n] = binary();
      at_least({{run->second, 1}, {gap.again_early[n], -1}}, 0);
    }
  }
}

void JointProgram::add_choices() {
  for (size_t g = 0; g < gaps_.size(); ++g) {
    const GapColumns& gap = columns_[g];
    if (!gap.moves) continue;
    if (const int on_host = host_at_start(gaps_[g].tensor); gaps_[g].from < 0 && on_host >= 0)
      at_least({{gap.keep, 1}, {on_host, -1}}, 0);  // starts on the host: nothing to decide
    Entries one = {{gap.keep, 1}};
    for (const int column : {gap.host, gap.again})
      if (column >= 0) one.emplace_back(column, 1);
    for (const int column : gap.packed)
      if (column >= 0) one.emplace_back(column, 1);
    for (const auto& [stage, column] : gap.again_early) one.emplace_back(column, 1);
    program_.add_row(1, 1, std::move(one));
  }
}

/// Adds rows that give each repeated run its inputs. An input is present, or an earlier action
/// brings it. Such an action is another repeated run. It can also be a fetch or a codec in addition
/// to the one at the gap's end.
void JointProgram::add_inputs_of_runs() {
  for (const auto& [key, run] : runs_) {
    const auto [stage, node] = key;
    for (const int t : scheduler_.reads_[node]) {
      const auto of_input = runs_.find({stage, scheduler_.producer_[t]});
      const int g = gap_at(t, stage);
      if (of_input == runs_.end() && free_runs_.contains({stage, scheduler_.producer_[t]}))
        continue;
      if (!present(t, stage)) at_least({{of_input->second, 1}, {run, -1}}, 0);
      if (g < 0 || !columns_[g].moves) continue;
      GapColumns& gap = columns_[g];
      const bool packs =
          std::any_of(gap.packed.begin(), gap.packed.end(), [](int c) { return c >= 0; });
      if (gap.host >= 0 && !gap.fetch_aside.contains(stage)) {
        gap.fetch_aside[stage] = binary();
        at_least({{gap.host, 1}, {gap.fetch_aside[stage], -1}}, 0);
      }
      if (packs && !gap.unpack_aside.contains(stage)) gap.unpack_aside[stage] = binary();
      Entries there = {{run, -1}, {gap.keep, 1}};
      Entries made = {{run, -1}};  // if run and `again` are 1, the input must run again
      for (const Slot& slot : gap.fetches)
        if (slot.first <= stage && !gaps_[g].wraps) there.emplace_back(slot.column, 1);
      for (const auto* aside : {&gap.fetch_aside, &gap.unpack_aside})
        if (aside->contains(stage)) there.emplace_back(aside->at(stage), 1);
      for (const auto& [early, column] : gap.again_early)
        if (early <= stage) there.emplace_back(column, 1);
      if (of_input != runs_.end()) {
        if (gap.again >= 0) there.emplace_back(gap.again, 1), made.emplace_back(gap.again, -1);
        for (const auto& [before, column] : gap.unpack_aside)
          if (before < stage) there.emplace_back(column, 1);
        made.emplace_back(of_input->second, 1);
        at_least(std::move(made), -1);
      }
      at_least(std::move(there), 0);
    }
    add_exactness(node, stage, run);
  }
  for (size_t g = 0; g < gaps_.size(); ++g) {
    GapColumns& gap = columns_[g];
    if (gap.unpack_aside.empty()) continue;
    Entries once, lost;
    for (const int column : gap.packed)
      if (column >= 0) once.emplace_back(column, 1);
    for (const auto& [stage, column] : gap.unpack_aside)
      once.emplace_back(column, -1), lost.emplace_back(column, -1);
    at_least(std::move(once), 0);
    // A tensor unpacked aside is no longer packed, so its reader needs it recomputed.
    const auto run = runs_.find({gaps_[g].to, scheduler_.producer_[gaps_[g].tensor]});
    if (run != runs_.end()) lost.emplace_back(run->second, 1);
    at_least(std::move(lost), 0);
  }
}

/// Adds rows for exactness. A result made from a lossy copy is not exact. Some nodes read no copy
/// that went through a codec.
void JointProgram::add_exactness(int node, int stage, int column) {
  const auto& outputs = graph_.nodes[node].outputs;
  const bool unpacked = graph_.nodes[node].reads_unpacked;
  if (!unpacked && (outputs.size() != 1 || graph_.tensors[outputs[0]].lossy_ok)) return;
  for (const int t : scheduler_.reads_[node])
    for (const int g : scheduler_.gaps_of_[t]) {
      if (gaps_[g].from >= stage || !columns_[g].moves) continue;
      // A copy recomputed since then would be exact.
      const auto& gaps = scheduler_.gaps_of_[t];
      if (!present(t, stage) || std::any_of(gaps.begin(), gaps.end(), [&](int other) {
            return gaps_[other].from >= gaps_[g].to && gaps_[other].from < stage;
          }))
        continue;
      Entries lossy = {{column, 1}};
      for (size_t c = 0; c < graph_.codecs.size(); ++c)
        if (columns_[g].packed[c] >= 0 && (unpacked || graph_.codecs[c].max_error > 0))
          lossy.emplace_back(columns_[g].packed[c], 1);
      if (lossy.size() == 1) continue;
      for (const auto& [before, aside] : columns_[g].unpack_aside)
        if (before < stage) lossy.emplace_back(aside, -1);
      at_most(std::move(lossy), 1);
    }
}

}  // namespace dovetail::plan
