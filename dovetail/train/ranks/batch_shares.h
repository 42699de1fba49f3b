#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/jobs/micro_batches.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail {

/// Throws UserError for what [balance] cannot be in any job.
void check_balance(const RunConfig& config);

/// The samples of a step that each rank has: rank r the r-th part of the global batch, whose
/// samples and order do not depend on how many ranks there are or how large their parts.
///
/// balance.mode = "off": parts that differ by one sample at most. "fixed": balance.shares
/// micro-batches. "auto": micro- batches in proportion to how fast the ranks have computed theirs
/// of late.
class BatchShares {
 public:
  /// `stored`: the shares of a checkpoint, where "auto" goes on if they are of as many ranks and
  /// micro-batches; empty: none. Throws UserError for shares of another number of ranks.
  BatchShares(const RunConfig& config, int ranks, const std::vector<int64_t>& stored = {});

  struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  Range range(int rank) const;
  int64_t most_samples() const;   ///< of any rank
  int64_t most_possible() const;  ///< that a rank may ever have

  bool automatic() const { return moving_.has_value(); }
  /// Of each rank; empty with mode = "off".
  const std::vector<int64_t>& micro_batches() const {
    return moving_ ? moving_->shares() : shares_;
  }

  using Move = jobs::MicroBatchShares::Move;
  /// "auto": this rank has computed `micro_batches` of a step in `seconds`, without what it waited
  /// for others; 0 where its step tells nothing, and then the step does not count. All ranks
  /// together, who then have the same shares.
  std::optional<Move> add(Group& group, int64_t micro_batches, double seconds);

 private:
  int64_t batch_, micro_batch_;
  int ranks_;
  std::vector<int64_t> shares_;  ///< "fixed"
  std::optional<jobs::MicroBatchShares> moving_;
};

/// Lines of balance.jsonl: "step", the first with these "shares", and where they moved what they
/// were moved by: "rank_ms" of one micro-batch on each rank, "compute_ms" of a step then and
/// "before_ms".
nlohmann::ordered_json shares_line(int64_t step, const std::vector<int64_t>& shares);
nlohmann::ordered_json shares_line(int64_t step, const BatchShares::Move& move);
/// "micro-batches of the ranks: 4, 4 -> 6, 2; a step computes for 0.40 s instead of 0.80 s".
std::string move_line(const BatchShares::Move& move);

}  // namespace dovetail
