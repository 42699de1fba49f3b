// Rows of the joint program that bound clocks, streams and memory.
#include <algorithm>
#include <cmath>
#include <set>

#include "dovetail/plan/model/index_list.h"
#include "dovetail/plan/solve/joint_program.h"

namespace dovetail::plan {
namespace {

// Number of stages; with more, a row covers only the nearest fetches.
constexpr int kAllFetchStages = 64;
// Number of stages before each reader from which the fetch stream's load is bounded.
constexpr int kFetchStarts = 16;
constexpr int kOffloadStarts = 24;  // same for the offload stream

}  // namespace

void JointProgram::add_times() {
  for (int n = 0; n < stages_; ++n) {
    Entries work = {{start_[n], 1}, {begin_[n], -1}},
            compute = {{begin_[n + 1], 1}, {start_[n], -1}};
    add_algorithm_time(compute, n, -1);
    double minimum_s = choice_[n].empty() ? graph_.nodes[n].algorithms[only_[n]].time_s : 0;
    for (auto run = runs_.lower_bound({n, -1}); run != runs_.end() && run->first.first == n;
         ++run) {
      const int p = run->first.second;
      const auto& algorithms = graph_.nodes[p].algorithms;
      if (choice_[p].empty()) {
        work.emplace_back(run->second, -time(algorithms[only_[p]].time_s));
        continue;
      }
      double longest_s = 0, shortest_s = std::numeric_limits<double>::infinity();
      for (const Algorithm& algorithm : algorithms) {
        longest_s = std::max(longest_s, algorithm.time_s);
        shortest_s = std::min(shortest_s, algorithm.time_s);
      }
      const int seconds = clock(0, longest_s);
      run_s_[run->first] = seconds;
      Entries product = {{seconds, 1}, {run->second, -time(longest_s)}};
      add_algorithm_time(product, p, -1);
      at_least(std::move(product), -time(longest_s));
      at_least({{seconds, 1}, {run->second, -time(shortest_s)}}, 0);
      work.emplace_back(seconds, -1);
    }
    for (size_t g = 0; g < gaps_.size(); ++g) {
      const double size = bytes(gaps_[g].tensor);
      double soonest_s = std::numeric_limits<double>::infinity(), latest_s = 0;
      for (size_t c = 0; c < columns_[g].packed.size(); ++c) {
        const int column = columns_[g].packed[c];
        if (column < 0) continue;
        const double decode_s = size / graph_.codecs[c].decode_bytes_per_s;
        soonest_s = std::min(soonest_s, decode_s);
        latest_s = std::max(latest_s, decode_s);
        if (gaps_[g].from == n)
          compute.emplace_back(column, -time(size / graph_.codecs[c].encode_bytes_per_s));
        if (gaps_[g].to == n) work.emplace_back(column, -time(decode_s));
      }
      for (const auto& [stage, column] : columns_[g].unpack_aside) {
        if (stage == n) work.emplace_back(column, -time(soonest_s));
        if (gaps_[g].to == n) work.emplace_back(column, time(latest_s));  // not unpacked again
      }
    }
    for (const Entries* stage : {&work, &compute})
      computing_.insert(computing_.end(), stage->begin() + 2,
                        stage->end());  // after the two clocks
    computing_s_ += minimum_s;
    at_least(std::move(work), 0);
    at_least(std::move(compute), time(minimum_s));
  }
}

/// Adds the time of the chosen algorithm, if there is a choice.
void JointProgram::add_algorithm_time(Entries& out, int node, double sign) const {
  for (size_t a = 0; a < choice_[node].size(); ++a)
    if (choice_[node][a] >= 0)
      out.emplace_back(choice_[node][a], sign * time(graph_.nodes[node].algorithms[a].time_s));
}

/// Bounds the fetch stream. All fetches that start at stage j or later, for readers up to b, fit
/// between the two, one after the other.
void JointProgram::add_fetch_stream() {
  for (int b = 0; b < stages_; ++b) {
    std::set<int> starts;
    bool reads = false;
    for (size_t g = 0; g < gaps_.size(); ++g) {
      const GapColumns& gap = columns_[g];
      if (gap.host < 0 || first_fetch(static_cast<int>(g)) > b) continue;
      reads = reads || gaps_[g].to == b || gap.fetch_aside.contains(b);
      for (const Slot& slot : gap.fetches)
        if (gaps_[g].to <= b) starts.insert(slot.first);
    }
    if (!reads) continue;
    starts.insert(b);
    int left = stages_ > kAllFetchStages ? kFetchStarts : stages_;
    for (auto j = starts.rbegin(); j != starts.rend() && left > 0; ++j, --left) {
      Entries load = {{start_[b], 1}, {begin_[*j], -1}};
      for (size_t g = 0; g < gaps_.size(); ++g) {
        const GapColumns& gap = columns_[g];
        const int t = gaps_[g].tensor;
        for (const auto& [stage, column] : gap.fetch_aside)
          if (stage >= *j && stage <= b) load.emplace_back(column, -time(to_device_s(t)));
        if (gap.host < 0 || gaps_[g].to > b) continue;
        for (const Slot& slot : gap.fetches)
          if (slot.first >= *j) load.emplace_back(slot.column, -time(to_device_s(t)));
        if (graph_.bandwidth.duplex || gaps_[g].wraps) continue;
        const Job& job = jobs_[gap.job];
        if (job.gaps.size() == 1 && !job.optional && job.made_by >= *j)
          load.emplace_back(gap.host, -time(to_host_s(t)));
      }
      at_least(std::move(load), 0);
    }
  }
}

void JointProgram::add_offload_stream() {
  Entries both = {{end_, 1}};
  for (size_t j = 0; j < jobs_.size(); ++j) {
    const Job& job = jobs_[j];
    const double copy_s = to_host_s(job.tensor);
    both.emplace_back(job.column, -time(copy_s));
    if (j > 0) at_least({{job.end, 1}, {jobs_[j - 1].end, -1}, {job.column, -time(copy_s)}}, 0);
    Entries made = {{job.end, 1}, {job.column, -time(copy_s)}};
    double made_s = 0;
    if (job.made_by >= 0) {
      made.emplace_back(start_[job.made_by], -1);
      add_algorithm_time(made, job.made_by, -1);
      if (choice_[job.made_by].empty())
        made_s = graph_.nodes[job.made_by].algorithms[only_[job.made_by]].time_s;
    }
    at_least(std::move(made), time(made_s));
    // If `column` is 1 and there is a copy, `stage` starts at least `later_s` after the copy's end.
    const auto awaited = [&](int stage, int column, double later_s) {
      const double most = time(longest_s_ - soonest_s_[stage]);
      Entries entries = {{start_[stage], 1}, {job.end, -1}, {column, -most - time(later_s)}};
      if (job.optional && column != job.column) entries.emplace_back(job.column, -most);
      at_least(std::move(entries), job.optional && column != job.column ? -2 * most : -most);
    };
    for (const int g : job.gaps) {
      for (const auto& [stage, column] : columns_[g].ended) awaited(stage, column, 0);
      const bool fetched = on_host(gaps_[g].to, job.tensor).empty();
      if (!gaps_[g].wraps)
        awaited(gaps_[g].to, columns_[g].host, fetched ? to_device_s(job.tensor) : 0);
    }
    const auto& writers = scheduler_.writers_[job.tensor];
    const auto writer = std::upper_bound(writers.begin(), writers.end(), job.made_by);
    // A write must not overtake a copy.
    if (writer != writers.end()) awaited(*writer, job.column, 0);
  }
  for (size_t g = 0; g < gaps_.size(); ++g) {
    const double fetch_s = to_device_s(gaps_[g].tensor);
    for (const Slot& slot : columns_[g].fetches) both.emplace_back(slot.column, -time(fetch_s));
    for (const auto& [stage, column] : columns_[g].fetch_aside)
      both.emplace_back(column, -time(fetch_s));
  }
  add_slowdown();
  if (!jobs_.empty()) at_least({{end_, 1}, {jobs_.back().end, -1}}, 0);
  if (!graph_.bandwidth.duplex) at_least(std::move(both), 0);
}

/// Adds the delay of computing during copies, which is expected in addition to the step's end. Each
/// direction does one copy at a time. So copies overlap computing for at least their time minus the
/// time in which computing is idle.
void JointProgram::add_slowdown() {
  if (graph_.bandwidth.slowdown <= 0) return;
  Entries out = {{end_, 1}}, in = {{end_, 1}};
  for (const Job& job : jobs_) out.emplace_back(job.column, -time(to_host_s(job.tensor)));
  for (size_t g = 0; g < gaps_.size(); ++g) {
    const double fetch_s = to_device_s(gaps_[g].tensor);
    for (const Slot& slot : columns_[g].fetches) in.emplace_back(slot.column, -time(fetch_s));
    for (const auto& [stage, column] : columns_[g].fetch_aside)
      in.emplace_back(column, -time(fetch_s));
  }
  for (auto* direction : {&out, &in}) {
    const int beside = clock(0, longest_s_);
    program_.cost[beside] = graph_.bandwidth.slowdown;
    direction->emplace_back(beside, 1);
    direction->insert(direction->end(), computing_.begin(), computing_.end());
    at_least(std::move(*direction), time(computing_s_));
    beside_.push_back(beside);
  }
}

/// Column that is 1 if a job's copy has ended when a stage starts, or -1.
int JointProgram::ended_by(const Job& job, int stage) const {
  for (const int g : job.gaps) {
    const GapColumns& gap = columns_[g];
    if (!gaps_[g].wraps && gaps_[g].to <= stage) return gap.host;
    const auto later = gap.ended.upper_bound(stage);
    if (later != gap.ended.begin()) return std::prev(later)->second;
  }
  return -1;
}

/// Bounds the offload stream. Copies to the host of tensors made by node k or later, if ended when
/// a stage starts, fit between the two. They run one after the other. A row combines what `awaited`
/// says of each copy. For fractions of copies, it says more.
void JointProgram::add_offload_load() {
  for (int stage = 0; stage < stages_; ++stage) {
    if (!tight_[stage]) continue;
    std::map<int, Entries> made_by;
    for (const Job& job : jobs_)
      if (const int column = ended_by(job, stage);
          column >= 0 && job.made_by < stage && !job.optional)
        made_by[job.made_by].emplace_back(column, -time(to_host_s(job.tensor)));
    Entries load = {{start_[stage], 1}};
    const int apart =
        stages_ > kAllFetchStages ? 1 + static_cast<int>(made_by.size()) / kOffloadStarts : 1;
    int left = static_cast<int>(made_by.size());
    for (auto made = made_by.rbegin(); made != made_by.rend(); ++made) {
      load.insert(load.end(), made->second.begin(), made->second.end());
      if (--left % apart != 0) continue;
      Entries since = load;
      const int node = made->first;
      double made_s = 0;
      if (node >= 0) {
        since.emplace_back(start_[node], -1);
        add_algorithm_time(since, node, -1);
        if (choice_[node].empty()) made_s = graph_.nodes[node].algorithms[only_[node]].time_s;
      }
      at_least(std::move(since), time(made_s));
    }
  }
}

/// Adds the memory that a gap's tensor takes at a stage within the gap. Offloads count if they are
/// in flight when the node of stage `leaving` starts. Not counted are runs of stage `before` or
/// later, and fetches of `before` or `leaving` or later. A tensor that starts on the host may have
/// a kept gap from the start of the step. Its wrapped gap replaces the memory of that gap.
void JointProgram::add_resident(Level& out, int g, int before, int leaving) const {
  const GapColumns& gap = columns_[g];
  const double size = mass(bytes(gaps_[g].tensor));
  const bool wraps = gaps_[g].wraps, after_use = wraps && before > gaps_[g].from;
  out.entries.emplace_back(gap.keep, size);
  for (size_t c = 0; c < gap.packed.size(); ++c)
    if (gap.packed[c] >= 0)
      out.entries.emplace_back(gap.packed[c], packed_mass(g, static_cast<int>(c)));
  for (const Slot& slot : gap.fetches)
    if (slot.last < std::min(before, leaving) && !after_use)
      out.entries.emplace_back(slot.column, size);
  for (const auto& [stage, column] : gap.again_early)
    if (stage < before) out.entries.emplace_back(column, size);
  double most = 0;  // packed form, until it is unpacked aside
  for (size_t c = 0; c < gap.packed.size(); ++c)
    if (gap.packed[c] >= 0) most = std::max(most, packed_mass(g, static_cast<int>(c)));
  for (const auto& [stage, column] : gap.unpack_aside)
    if (stage <= before) out.entries.emplace_back(column, -most);
  if (wraps && !after_use) return;
  if (const auto ended = gap.ended.lower_bound(leaving); ended != gap.ended.end()) {
    out.entries.emplace_back(gap.host, size);
    out.entries.emplace_back(ended->second, -size);
  }
}

double JointProgram::packed_mass(int gap, int codec) const {
  return mass(static_cast<double>(graph_.packed_bytes(gaps_[gap].tensor, codec)));
}

/// Memory held while the node of a stage runs, without its workspace. If `leaving` is that stage,
/// when the node starts; if `leaving` is the next stage, when it ends.
JointProgram::Level JointProgram::level_at(int stage, int leaving) const {
  Level out{.bytes = kept_bytes_[stage]};
  for (size_t g = 0; g < gaps_.size(); ++g) {
    if (!columns_[g].moves || !covers(static_cast<int>(g), stage)) continue;
    out.bytes -= graph_.tensors[gaps_[g].tensor].bytes;
    add_resident(out, static_cast<int>(g), stage + 1, leaving);
  }
  return out;
}

/// Minimum memory held before the node of a stage runs, with the first `brought` of its inputs
/// present. Storages of `not_counted`, and tensors that the node may find on the host, are left
/// out.
JointProgram::Level JointProgram::level_before(int stage, size_t brought,
                                               const std::vector<int>& not_counted) const {
  Level out{.bytes = kept_bytes_[stage]};
  for (const int t : graph_.nodes[stage].outputs)
    if (graph_.tensors[t].alias_of < 0) out.bytes -= graph_.tensors[t].bytes;
  const auto& reads = scheduler_.reads_[stage];
  for (const int t : reads)
    if (!on_host(stage, t).empty()) out.bytes -= graph_.tensors[t].bytes;
  for (size_t g = 0; g < gaps_.size(); ++g) {
    const int t = gaps_[g].tensor;
    if (gaps_[g].to == stage && !on_host(stage, t).empty()) continue;
    const bool ends = gaps_[g].to == stage &&
                      std::find(reads.begin(), reads.begin() + static_cast<int64_t>(brought), t) ==
                          reads.begin() + static_cast<int64_t>(brought);
    if (!columns_[g].moves || !(ends || covers(static_cast<int>(g), stage))) continue;
    out.bytes -= graph_.tensors[t].bytes;
    if (!contains(not_counted, t)) add_resident(out, static_cast<int>(g), stage, stage);
  }
  return out;
}

/// Adds a row that keeps a level within the budget, unless no values can exceed it.
void JointProgram::add_budget(Level level) {
  double most = mass(static_cast<double>(level.bytes));
  for (const auto& [column, value] : level.entries) most += std::max(value, 0.0);
  if (most > kUnits)
    at_most(std::move(level.entries), kUnits - mass(static_cast<double>(level.bytes)));
}

void JointProgram::add_memory_of_node(int node, Level level) {
  const auto& algorithms = graph_.nodes[node].algorithms;
  if (choice_[node].empty()) level.bytes += algorithms[only_[node]].workspace_bytes;
  for (size_t a = 0; a < choice_[node].size(); ++a)
    if (choice_[node][a] >= 0)
      level.entries.emplace_back(choice_[node][a],
                                 mass(static_cast<double>(graph_.extra_bytes(algorithms[a]))));
  add_budget(std::move(level));
}

void JointProgram::add_memory() {
  Level at_start{.bytes = bytes_at_start_};
  for (size_t g = 0; g < gaps_.size(); ++g) {
    if (!gaps_[g].wraps || !columns_[g].moves) continue;
    at_start.bytes -= graph_.tensors[gaps_[g].tensor].bytes;
    at_start.entries.emplace_back(columns_[g].keep, mass(bytes(gaps_[g].tensor)));
  }
  add_budget(std::move(at_start));
  for (int n = 0; n < stages_; ++n) {
    if (!tight_[n]) continue;
    add_memory_of_node(n, level_at(n, n));
    // Memory when the node ends, too. A fetch that began as late as during a codec's work after the
    // node is exempt.
    double fetched = 0;
    for (size_t g = 0; g < gaps_.size(); ++g)
      for (const Slot& slot : columns_[g].fetches)
        if (slot.last == n && covers(static_cast<int>(g), n))
          fetched += mass(bytes(gaps_[g].tensor));
    if (fetched == 0) continue;
    Level at_end = level_at(n, n + 1);
    for (const int g : scheduler_.gaps_from_[n + 1])
      for (const int packed : columns_[g].packed)
        if (packed >= 0) at_end.entries.emplace_back(packed, -fetched);
    add_memory_of_node(n, std::move(at_end));
  }
  for (const auto& [key, column] : runs_) add_memory_of_run(key.second, key.first, column);
  for (size_t g = 0; g < gaps_.size(); ++g) add_memory_of_codecs(static_cast<int>(g));
}

/// Adds memory rows of a repeated run: its outputs, inputs and workspace, in addition to what is
/// held anyway.
void JointProgram::add_memory_of_run(int node, int stage, int column) {
  std::vector<int> own;
  const auto add_own = [&](int t) {
    if (!contains(own, t)) own.push_back(t);
  };
  for (const int t : scheduler_.reads_[node]) add_own(t);
  for (const int t : graph_.nodes[node].outputs)
    if (graph_.tensors[t].alias_of < 0) add_own(t);
  Level level = level_before(stage, 0, own);
  for (const int t : own) {
    bool counted = present(t, stage);  // in the constant part
    for (const int g : scheduler_.gaps_of_[t])
      if (columns_[g].moves && (covers(g, stage) || gaps_[g].to == stage)) counted = false;
    if (!counted) level.entries.emplace_back(column, mass(bytes(t)));
  }
  const auto& algorithms = graph_.nodes[node].algorithms;
  for (size_t a = 0; a < algorithms.size(); ++a) {
    const bool chosen = choice_[node].empty() && static_cast<int>(a) == only_[node];
    if (!chosen && (choice_[node].empty() || choice_[node][a] < 0)) continue;
    Level with = level;
    const double workspace = mass(static_cast<double>(algorithms[a].workspace_bytes));
    with.entries.emplace_back(column, workspace);
    if (!chosen) {  // at most the product of both columns
      with.entries.emplace_back(choice_[node][a], workspace);
      with.bytes -= algorithms[a].workspace_bytes;
    }
    add_budget(std::move(with));
  }
}

/// A storage exists in both forms while a codec works.
void JointProgram::add_memory_of_codecs(int g) {
  const GapColumns& gap = columns_[g];
  if (std::all_of(gap.packed.begin(), gap.packed.end(), [](int column) { return column < 0; }))
    return;
  const auto [tensor, from, to, wraps] = gaps_[g];
  Level after = level_at(from, from + 1);
  for (const int earlier : scheduler_.gaps_from_[from + 1]) {
    if (earlier == g) break;
    if (!columns_[earlier].moves) continue;
    after.bytes -= graph_.tensors[gaps_[earlier].tensor].bytes;
    add_resident(after, earlier, 0, stages_);
  }
  const auto& reads = scheduler_.reads_[to];
  const auto place =
      static_cast<size_t>(std::find(reads.begin(), reads.end(), tensor) - reads.begin());
  Level before = level_before(to, place, {});
  for (size_t c = 0; c < gap.packed.size(); ++c) {
    if (gap.packed[c] < 0) continue;
    after.entries.emplace_back(gap.packed[c], packed_mass(g, static_cast<int>(c)));
    before.entries.emplace_back(gap.packed[c], mass(bytes(tensor)));
  }
  for (const auto& [stage, column] : gap.unpack_aside)
    before.entries.emplace_back(column, -mass(bytes(tensor)));
  add_budget(std::move(after));
  add_budget(std::move(before));
}

}  // namespace dovetail::plan
