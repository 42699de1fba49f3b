#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/jobs/micro_batches.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Throws UserError for a [balance] section that no job can run.
void check_balance(const RunConfig& config);

/// Division of a step's samples among ranks. Rank r has the r-th part of the global batch. The
/// batch's samples and their order do not depend on the number of ranks or the sizes of the parts.
///
/// balance.mode = "off": sizes differ by at most one sample. "fixed": balance.shares micro-batches
/// per rank. "auto": micro-batches in proportion to each rank's recently measured speed.
class BatchShares {
 public:
  /// `stored`: shares of a checkpoint, empty if it has none. "auto" resumes with them if the
  /// numbers of ranks and micro-batches are the same. Throws UserError if balance.shares has
  /// another number of ranks.
  BatchShares(const RunConfig& config, int ranks, const std::vector<int64_t>& stored = {});

  struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  Range range(int rank) const;
  int64_t most_samples() const;   ///< maximum over the ranks, with the current shares
  int64_t most_possible() const;  ///< maximum that any later shares can give to a rank

  bool automatic() const { return moving_.has_value(); }
  /// Micro-batches of each rank; empty with mode = "off".
  const std::vector<int64_t>& micro_batches() const {
    return moving_ ? moving_->shares() : shares_;
  }

  using Move = jobs::MicroBatchShares::Move;
  /// "auto": reports that this rank computed `micro_batches` of a step in `seconds`, without its
  /// waits for other ranks. Pass 0 micro-batches if the step's time is not representative; it then
  /// does not count. Returns the move if the shares changed. All ranks call it together and get the
  /// same shares.
  std::optional<Move> add(comm::Group& group, int64_t micro_batches, double seconds);

 private:
  int64_t batch_, micro_batch_;
  int ranks_;
  std::vector<int64_t> shares_;  ///< balance.shares, only with mode = "fixed"
  std::optional<jobs::MicroBatchShares> moving_;
};

/// Lines of balance.jsonl: "step", the first step with these "shares". After a move also its cause.
/// "rank_ms" is the time of one micro-batch on each rank. "compute_ms" and "before_ms" are a step's
/// predicted compute times with the new and the old shares.
nlohmann::ordered_json shares_line(int64_t step, const std::vector<int64_t>& shares);
nlohmann::ordered_json shares_line(int64_t step, const BatchShares::Move& move);
/// Line for the log: "micro-batches of the ranks: 4, 4 -> 6, 2; a step computes for 0.40 s instead
/// of 0.80 s".
std::string move_line(const BatchShares::Move& move);

}  // namespace dovetail::train
