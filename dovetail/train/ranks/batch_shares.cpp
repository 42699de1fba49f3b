#include "dovetail/train/ranks/batch_shares.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/comm/collective.h"

namespace dovetail::train {
namespace {

int64_t sum(const std::vector<int64_t>& shares) {
  return std::accumulate(shares.begin(), shares.end(), int64_t{0});
}

void check_shares(const RunConfig& config) {
  const std::vector<int64_t>& shares = config.balance.shares;
  const int64_t micro_batches = config.train.batch / config.train.micro_batch;
  user_check(!shares.empty(),
             "balance.mode = \"fixed\" needs balance.shares, the micro-batches of each rank; "
             "together they are train.batch / train.micro_batch = {}",
             micro_batches);
  user_check(sum(shares) == micro_batches,
             "balance.shares = [{}] are {} micro-batches, but train.batch / train.micro_batch = {} "
             "/ {} is {}",
             fmt::join(shares, ", "), sum(shares), config.train.batch, config.train.micro_batch,
             micro_batches);
}

/// Throws UserError for keys that do not work with balance.mode = "auto", with the reason.
void check_moving(const RunConfig& config) {
  const auto refuse = [](bool there, const std::string& what, const char* why) {
    if (there)
      throw UserError(fmt::format("balance.mode = \"auto\" does not work with {}: {}", what, why),
                      "use balance.mode = \"fixed\", or leave one of both out");
  };
  user_check(config.balance.shares.empty(),
             "balance.shares does nothing with balance.mode = \"auto\", which measures them; leave "
             "it out");
  refuse(config.parallel.expert > 1, fmt::format("parallel.expert = {}", config.parallel.expert),
         "ranks exchange tokens in every micro-batch. So all wait for the slowest in each, and no "
         "rank's own speed can be measured");
}

}  // namespace

void check_balance(const RunConfig& config) {
  const BalanceSection& balance = config.balance;
  if (balance.mode == "off") {
    user_check(balance == BalanceSection(),
               "balance.shares and balance.gain do nothing with balance.mode = \"off\"; choose "
               "\"fixed\" or \"auto\"");
    return;
  }
  const int64_t micro_batch = config.train.micro_batch;
  user_check(micro_batch > 0,
             "balance.mode = \"{}\" needs micro-batches of equal size, but train.micro_batch = {} "
             "leaves the size open; give a number of samples",
             balance.mode, micro_batch == TrainSection::kAuto ? "\"auto\"" : "0");
  user_check(config.train.batch % micro_batch == 0,
             "balance.mode = \"{}\" shares out micro-batches of equal size, but train.batch = {} "
             "is not a multiple of train.micro_batch = {}",
             balance.mode, config.train.batch, micro_batch);
  user_check(config.model.moe.load_scope != "global_batch",
             "balance.mode = \"{}\" does not work with model.moe.load_scope = \"global_batch\". "
             "Its counts over all ranks would depend on the shares; leave load_scope out",
             balance.mode);
  user_check(
      !models::has_negatives(config.recommender),
      "balance.mode = \"{}\" does not work with recommender.auxiliary_weight = {}. Negatives are "
      "drawn among the samples of a rank, so results would depend on the shares; set it to 0",
      balance.mode, config.recommender.auxiliary_weight);
  user_check(balance.mode == "auto" || balance.gain == BalanceSection().gain,
             "balance.gain does nothing with balance.mode = \"{}\", whose shares do not move; "
             "leave it out",
             balance.mode);
  if (balance.mode == "fixed") return check_shares(config);
  check_moving(config);
}

BatchShares::BatchShares(const RunConfig& config, int ranks, const std::vector<int64_t>& stored)
    : batch_(config.train.batch), micro_batch_(config.train.micro_batch), ranks_(ranks) {
  if (config.run.names_executors()) return;  // [balance] is about the executors of one rank
  const BalanceSection& balance = config.balance;
  if (balance.mode == "fixed") {
    user_check(std::ssize(balance.shares) == ranks,
               "balance.shares = [{}] are of {} ranks, but the job has {}; start as many as there "
               "are shares",
               fmt::join(balance.shares, ", "), balance.shares.size(), ranks);
    shares_ = balance.shares;
  }
  if (balance.mode != "auto") return;
  const int64_t count = batch_ / micro_batch_;
  user_check(ranks > 1,
             "balance.mode = \"auto\" shares a step out over ranks, but the job has one; start "
             "several with `dovetail launch`, or leave it out");
  user_check(count >= ranks,
             "train.batch / train.micro_batch = {} / {} leaves some of the {} ranks without a "
             "micro-batch; use smaller ones or fewer ranks",
             batch_, micro_batch_, ranks);
  std::vector<int64_t> shares = stored;
  if (std::ssize(stored) != ranks || sum(stored) != count) {
    shares.clear();
    for (int64_t r = 0; r < ranks; ++r)
      shares.push_back(count * (r + 1) / ranks - count * r / ranks);
  }
  moving_.emplace(std::move(shares), balance.gain);
}

BatchShares::Range BatchShares::range(int rank) const {
  const std::vector<int64_t>& shares = micro_batches();
  if (shares.empty()) return {batch_ * rank / ranks_, batch_ * (rank + 1) / ranks_};
  const int64_t begin = std::accumulate(shares.begin(), shares.begin() + rank, int64_t{0});
  return {begin * micro_batch_, (begin + shares[static_cast<size_t>(rank)]) * micro_batch_};
}

int64_t BatchShares::maximum_samples() const {
  const std::vector<int64_t>& shares = micro_batches();
  return shares.empty() ? (batch_ + ranks_ - 1) / ranks_
                        : *std::ranges::max_element(shares) * micro_batch_;
}

int64_t BatchShares::maximum_possible_samples() const {
  return automatic() ? batch_ - (ranks_ - 1) * micro_batch_ : maximum_samples();
}

std::optional<BatchShares::Move> BatchShares::add(comm::Group& group, int64_t micro_batches,
                                                  double seconds) {
  DOVETAIL_CHECK(automatic(), "these shares do not move");
  const auto ranks = static_cast<size_t>(ranks_), own = static_cast<size_t>(group.rank());
  std::vector<double> values(2 * ranks, 0);
  values[own] = static_cast<double>(micro_batches);
  values[ranks + own] = seconds;
  // Each sum has one number and zeros. So it is exact, and the same on all ranks.
  values = sum_over_ranks(group, values);
  const std::vector<int64_t> counts(values.begin(), values.begin() + ranks_);
  if (*std::ranges::min_element(counts) == 0) return std::nullopt;
  return moving_->add(counts, {values.begin() + ranks_, values.end()});
}

nlohmann::ordered_json shares_line(int64_t step, const std::vector<int64_t>& shares) {
  return {{"step", step}, {"shares", shares}};
}

nlohmann::ordered_json shares_line(int64_t step, const BatchShares::Move& move) {
  nlohmann::ordered_json line = shares_line(step, move.to);
  auto rank_ms = nlohmann::ordered_json::array();
  for (const double seconds : move.rank_s) rank_ms.push_back(1e3 * seconds);
  line["rank_ms"] = std::move(rank_ms);
  line["compute_ms"] = 1e3 * move.to_s;
  line["before_ms"] = 1e3 * move.from_s;
  return line;
}

std::string move_line(const BatchShares::Move& move) {
  return fmt::format(
      "micro-batches of the ranks: {} -> {}; a step computes for {:.3g} s instead of {:.3g} s",
      fmt::join(move.from, ", "), fmt::join(move.to, ", "), move.to_s, move.from_s);
}

}  // namespace dovetail::train
