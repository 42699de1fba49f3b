// Conversion between decisions and column values of the joint program.
#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/plan/solve/joint_program.h"
#include "dovetail/plan/solve/search.h"

namespace dovetail::plan {
namespace {

constexpr double kHalf = 0.5;

/// Stages of a schedule, and the stage in which each action is issued.
struct Stages {
  std::vector<double> begin_s,
      start_s;  // per stage: end of the previous stage, start of its node
  std::vector<int> of_action;
};

Stages find_stages(const Graph& graph, const Schedule& schedule) {
  const auto& actions = schedule.plan.actions;
  const auto& spans = schedule.timeline.actions;
  Stages out{.begin_s = {0}};
  for (size_t i = 0; i < actions.size(); ++i) {
    const int stage = static_cast<int>(out.start_s.size());
    out.of_action.push_back(stage);
    if (actions[i].op == Op::kCompute && actions[i].node == stage) {
      out.start_s.push_back(spans[i].start_s);
      out.begin_s.push_back(spans[i].end_s);
    } else if (actions[i].op == Op::kCompress) {
      out.begin_s.back() = spans[i].end_s;  // the node's results are packed until then
    }
  }
  DOVETAIL_CHECK(out.start_s.size() == graph.nodes.size(), "a schedule of {} nodes of {}",
                 out.start_s.size(), graph.nodes.size());
  return out;
}

}  // namespace

Decisions JointProgram::decisions(const std::vector<double>& values) const {
  const auto chosen = [&](int column) {
    return column >= 0 && values[static_cast<size_t>(column)] > kHalf;
  };
  Decisions out{.gaps = std::vector<Keep>(gaps_.size()),
                .codec = std::vector<int>(gaps_.size()),
                .algorithms = only_};
  for (size_t g = 0; g < gaps_.size(); ++g) {
    const GapColumns& gap = columns_[g];
    if (chosen(gap.host)) out.gaps[g] = Keep::kHost;
    if (chosen(gap.again)) out.gaps[g] = Keep::kAgain;
    for (const auto& [stage, column] : gap.again_early)
      if (chosen(column)) out.gaps[g] = Keep::kAgainEarly;
    for (size_t c = 0; c < gap.packed.size(); ++c)
      if (chosen(gap.packed[c])) out.gaps[g] = Keep::kPacked, out.codec[g] = static_cast<int>(c);
  }
  for (size_t n = 0; n < choice_.size(); ++n)
    for (size_t a = 0; a < choice_[n].size(); ++a) {
      if (!chosen(choice_[n][a])) continue;
      out.algorithms[n] = static_cast<int>(a);
      for (const int t :
           graph_.nodes[n].algorithms[a].on_host)  // includes tensors left out of the program
        for (const int g : scheduler_.gaps_on_host(static_cast<int>(n), t))
          out.gaps[g] = Keep::kHost;
    }
  return out;
}

int JointProgram::left_out_at(int stage, const Decisions& decisions) const {
  int out = -1;
  for (int g = 0; g < static_cast<int>(gaps_.size()); ++g)
    if (left_out_[g] && decisions.gaps[g] == Keep::kResident && !gaps_[g].wraps &&
        covers(g, stage) && may_be_offloaded(graph_, gaps_[g], options_) &&
        (out < 0 || bytes(gaps_[g].tensor) > bytes(gaps_[out].tensor)))
      out = g;
  return out;
}

void JointProgram::exclude(const Decisions& decisions) {
  Entries same;
  double most = -1;
  for (size_t g = 0; g < gaps_.size(); ++g) {
    const GapColumns& gap = columns_[g];
    if (!gap.moves) continue;
    ++most;
    switch (decisions.gaps[g]) {
      case Keep::kResident:
        same.emplace_back(gap.keep, 1);
        break;
      case Keep::kHost:
        same.emplace_back(gap.host, 1);
        break;
      case Keep::kAgain:
        same.emplace_back(gap.again, 1);
        break;
      case Keep::kAgainEarly:
        for (const auto& [stage, column] : gap.again_early) same.emplace_back(column, 1);
        break;
      case Keep::kPacked:
        same.emplace_back(gap.packed[decisions.codec[g]], 1);
        break;
    }
  }
  for (size_t n = 0; n < choice_.size(); ++n)
    if (!choice_[n].empty()) same.emplace_back(choice_[n][decisions.algorithms[n]], 1), ++most;
  at_most(std::move(same), most);
}

std::vector<double> JointProgram::point(const Decisions& decisions,
                                        const Schedule& schedule) const {
  const Stages stages = find_stages(graph_, schedule);
  const auto& actions = schedule.plan.actions;
  const auto& spans = schedule.timeline.actions;
  std::vector<double> out(program_.cost.size());
  const auto set = [&](int column, double value) {
    if (column >= 0) out[static_cast<size_t>(column)] = value;
  };
  set(end_, time(schedule.timeline.makespan_s));
  if (!beside_.empty()) {
    const BesideComputing beside = beside_computing(schedule.plan, schedule.timeline);
    set(beside_[0], time(beside.out_s));
    set(beside_[1], time(beside.in_s));
  }
  for (int n = 0; n <= stages_; ++n) {
    set(begin_[n], time(stages.begin_s[n]));
    if (n < stages_) set(start_[n], time(stages.start_s[n]));
  }
  for (int n = 0; n < stages_; ++n)
    if (!choice_[n].empty()) set(choice_[n][decisions.algorithms[n]], 1);
  // Latest action in each gap. The last one brings the gap's tensor back.
  std::vector<int> last(gaps_.size(), -1);
  const auto set_aside = [&](int g) {
    if (last[g] < 0 || actions[last[g]].op == Op::kCompute) return;
    const auto& aside =
        actions[last[g]].op == Op::kPrefetch ? columns_[g].fetch_aside : columns_[g].unpack_aside;
    if (const auto column = aside.find(stages.of_action[last[g]]); column != aside.end())
      set(column->second, 1);
  };
  std::vector<double> offloaded_s(jobs_.size(), -1);
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const int stage = stages.of_action[i];
    const auto gap_of = [&](int tensor) {
      for (const int g : scheduler_.gaps_of_[tensor])
        if (!scheduler_.is_moot(decisions, g) && (covers(g, stage) || stage == gaps_[g].to))
          return g;
      return -1;
    };
    if (action.op == Op::kCompute && action.node < stage) {
      if (const auto run = runs_.find({stage, action.node}); run != runs_.end())
        set(run->second, 1);
      if (const auto run = run_s_.find({stage, action.node}); run != run_s_.end())
        set(run->second, time(graph_.nodes[action.node].algorithms[action.algorithm].time_s));
      for (const int t : graph_.nodes[action.node].outputs) {
        if (graph_.tensors[t].alias_of >= 0) continue;
        const int g = gap_of(t);
        if (g < 0 || decisions.gaps[g] == Keep::kResident) continue;
        // A tensor recomputed early stays. A tensor unpacked aside is no longer packed.
        if (last[g] < 0 ? stage == gaps_[g].to || decisions.gaps[g] == Keep::kAgainEarly
                        : stage == gaps_[g].to && actions[last[g]].op == Op::kDecompress &&
                              stages.of_action[last[g]] < stage) {
          set_aside(g);
          last[g] = static_cast<int>(i);
        }
      }
    } else if (action.op == Op::kPrefetch || action.op == Op::kDecompress) {
      const int g = gap_of(action.tensor);
      if (g < 0) continue;
      const auto aside = columns_[g].fetch_aside.find(stage);
      if (gaps_[g].wraps && stage > gaps_[g].from) {  // for a repeated run after its last use
        if (aside != columns_[g].fetch_aside.end()) set(aside->second, 1);
        continue;
      }
      set_aside(g);
      last[g] = static_cast<int>(i);
    } else if (action.op == Op::kOffload) {
      for (size_t j = 0; j < jobs_.size(); ++j) {
        const auto& writers = scheduler_.writers_[action.tensor];
        const auto next = std::upper_bound(writers.begin(), writers.end(), jobs_[j].made_by);
        if (jobs_[j].tensor != action.tensor || stage <= jobs_[j].made_by ||
            (next != writers.end() && stage > *next))
          continue;
        offloaded_s[j] = spans[i].end_s;
      }
    }
  }
  double stream_s = 0;
  std::vector<double> job_end_s;
  for (size_t j = 0; j < jobs_.size(); ++j) {
    const int n = jobs_[j].made_by;
    const double made_s =
        n < 0 ? 0 : stages.start_s[n] + graph_.nodes[n].algorithms[decisions.algorithms[n]].time_s;
    stream_s = offloaded_s[j] >= 0 ? offloaded_s[j] : std::max(stream_s, made_s);
    set(jobs_[j].end, time(stream_s));
    job_end_s.push_back(stream_s);
    if (offloaded_s[j] >= 0 && (jobs_[j].gaps.size() > 1 || jobs_[j].optional))
      set(jobs_[j].column, 1);
  }
  for (size_t g = 0; g < gaps_.size(); ++g) {
    const GapColumns& gap = columns_[g];
    if (!gap.moves) continue;
    const auto set_ended = [&] {
      const bool no_copy = gap.job < 0 || (jobs_[gap.job].optional && offloaded_s[gap.job] < 0);
      for (const auto& [by_stage, column] : gap.ended)
        if (no_copy || job_end_s[gap.job] <= stages.start_s[by_stage]) set(column, 1);
    };
    const bool moot = scheduler_.is_moot(decisions, static_cast<int>(g));
    if (!moot && decisions.gaps[g] == Keep::kHost &&
        scheduler_.is_read_on_host(decisions, static_cast<int>(g))) {
      set_aside(static_cast<int>(g));  // any fetch in this gap is for a repeated run
      set(gap.host, 1);
      set_ended();
      continue;
    }
    if (decisions.gaps[g] == Keep::kResident || last[g] < 0 || moot) {
      set(gap.keep, 1);
      continue;
    }
    const Action& by = actions[last[g]];
    const int stage = stages.of_action[last[g]];
    if (by.op == Op::kCompute) {
      const auto lost = std::any_of(
          gap.unpack_aside.begin(), gap.unpack_aside.end(),
          [&](const auto& aside) { return out[static_cast<size_t>(aside.second)] != 0; });
      const auto early = gap.again_early.find(stage);
      set(lost                             ? gap.packed[decisions.codec[g]]
          : early != gap.again_early.end() ? early->second
                                           : gap.again,
          1);
      continue;
    }
    if (by.op == Op::kDecompress) {
      set(gap.packed[decisions.codec[g]], 1);
      continue;
    }
    set(gap.host, 1);
    int slot = first_fetch(static_cast<int>(g));
    while (slot < gaps_[g].to && stages.begin_s[slot + 1] <= spans[last[g]].start_s) ++slot;
    for (const Slot& fetch : gap.fetches)
      if (fetch.first <= slot && slot <= fetch.last) set(fetch.column, 1);
    set_ended();
  }
  return out;
}

}  // namespace dovetail::plan
