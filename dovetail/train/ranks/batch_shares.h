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

/// Throws UserError for a [balance] section that is invalid for any number of ranks.
void check_balance(const RunConfig& config);

/// Division of a step's samples among ranks. Rank r has the r-th part of the batch. The batch's
/// samples and their order do not depend on the number of ranks or the sizes of the parts.
///
/// The share of a rank is its number of micro-batches. Shares follow from balance.mode:
///
/// - "off": there are no shares, and parts differ by at most one sample
/// - "fixed": shares are balance.shares
/// - "auto": shares are in proportion to the recently measured speed of each rank
///
/// If run.device lists executors, [balance] is about them. There are then no shares, as with "off".
class BatchShares {
 public:
  /// `stored`: shares from a checkpoint, or empty. Mode "auto" begins with `stored` if these shares
  /// are for the job's number of ranks and of micro-batches per step. Otherwise it begins with even
  /// shares. Throws UserError if balance.shares is for another number of ranks.
  BatchShares(const RunConfig& config, int ranks, const std::vector<int64_t>& stored = {});

  /// Samples [begin, end) of the batch.
  struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  /// Returns the samples of a rank.
  Range range(int rank) const;
  int64_t maximum_samples() const;           ///< maximum samples of a rank with the current shares
  int64_t maximum_possible_samples() const;  ///< maximum samples of a rank, now or after any change

  /// Returns true if shares change while training (mode = "auto").
  bool automatic() const { return moving_.has_value(); }
  /// Returns the share of each rank, in micro-batches; empty with mode = "off".
  const std::vector<int64_t>& micro_batches() const {
    return moving_ ? moving_->shares() : shares_;
  }

  /// Change of shares, with its reason.
  using Move = jobs::MicroBatchShares::Move;
  /// Takes the measured time of a step into account, and changes the shares if that pays. Only with
  /// mode = "auto". `seconds`: time in which this rank computed `micro_batches` micro-batches,
  /// without waiting for other ranks. Pass `micro_batches` = 0 if the time is not representative:
  /// the step then does not count. Returns the change of the shares, if any. All ranks call it
  /// together and get the same shares.
  std::optional<Move> add(comm::Group& group, int64_t micro_batches, double seconds);

 private:
  int64_t batch_, micro_batch_;
  int ranks_;
  std::vector<int64_t> shares_;                   ///< balance.shares, only with mode = "fixed"
  std::optional<jobs::MicroBatchShares> moving_;  ///< only with mode = "auto"
};

/// Returns a line of balance.jsonl: {"step", "shares"}. `step` is the first step with these shares.
nlohmann::ordered_json shares_line(int64_t step, const std::vector<int64_t>& shares);
/// Returns a line of balance.jsonl for the new shares of `move`, with the cause. "rank_ms" is the
/// time of one micro-batch on each rank. "compute_ms" and "before_ms" are a step's predicted
/// compute times with the new and the old shares.
nlohmann::ordered_json shares_line(int64_t step, const BatchShares::Move& move);
/// Returns a line for the log about a change of shares. Example: "micro-batches of the ranks: 4, 4
/// -> 6, 2; a step computes for 0.40 s instead of 0.80 s".
std::string move_line(const BatchShares::Move& move);

}  // namespace dovetail::train
