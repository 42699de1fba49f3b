#include "dovetail/moe/row_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::moe {

namespace {

/// Repeats weights for experts in r shards: each row becomes r rows with the same weight.
at::Tensor shard_weight(const at::Tensor& weight, const ExpertLayout& layout) {
  return layout.shards == 1 ? weight
                            : weight.unsqueeze(2).expand({-1, -1, layout.shards}).flatten(1);
}

/// Chunk of rows on its way to the experts and back. Calls in this order: start, compute, finish.
class Chunk {
 public:
  Chunk() = default;
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  virtual ~Chunk() = default;
  virtual void start() = 0;         ///< starts to send the rows
  virtual void compute() = 0;       ///< runs the experts on arrived rows, starts to send results
  virtual at::Tensor finish() = 0;  ///< results of the chunk's tokens
};

/// Starts to send the experts' results to the ranks of their tokens.
comm::PendingRows start_back(const at::Tensor& results, at::ScalarType dtype,
                             const comm::Exchange& exchange, const ExpertRanks& ranks) {
  // Results are float32 sums, which only the float32 payload carries without rounding.
  const bool whole = ranks.combine.forward == comm::Payload::kFloat32;
  return comm::start_all_to_all(whole ? results : results.to(dtype), exchange.reversed(),
                                ranks.combine);
}

/// Chunk of slots. The rows of each expert are padded to a capacity, so all sizes are known.
class PaddedChunk final : public Chunk {
 public:
  PaddedChunk(at::Tensor x, at::Tensor weight, Dispatch to, const LocalExperts& experts,
              const ExpertRanks& ranks, bool hierarchical)
      : x_(std::move(x)),
        weight_(std::move(weight)),
        to_(std::move(to)),
        experts_(experts),
        ranks_(ranks) {
    const Placement& placement = ranks.placement;
    const int64_t own = placement.count(placement.holder(ranks.group->rank()));
    comm::Splits rows;
    for (int rank = 0; rank < placement.ranks; ++rank) {
      rows.send.push_back(placement.count(placement.holder(rank)) * to_.capacity());
      rows.receive.push_back(own * to_.capacity());
    }
    const std::vector<int64_t> of_sender(static_cast<size_t>(own), to_.capacity());
    DispatchedRows arrived =
        arriving(std::vector(static_cast<size_t>(placement.ranks), of_sender), own);
    const int64_t places = arrived.size();
    local_ = on_device(std::move(arrived), places, 1, x_.device());
    if (!x_.is_cpu()) to_ = on_device(to_.rows(), x_.size(0), weight_.size(1), x_.device());
    exchange_.emplace(hierarchical ? comm::Exchange::hierarchical_even(*ranks.nodes, to_.places())
                                   : comm::Exchange(ranks.group, std::move(rows)));
  }

  void start() override {
    there_.emplace(comm::start_all_to_all(dispatch_rows(x_, to_), *exchange_, ranks_.dispatch));
  }
  void compute() override {
    const at::Tensor rows = there_->wait();
    const at::Tensor ones = at::ones({rows.size(0), 1}, weight_.options().requires_grad(false));
    back_.emplace(start_back(run_experts(rows, ones, local_, experts_), rows.scalar_type(),
                             *exchange_, ranks_));
  }
  at::Tensor finish() override { return combine_rows(back_->wait(), weight_, to_); }

 private:
  at::Tensor x_, weight_;
  Dispatch to_, local_;
  const LocalExperts& experts_;
  const ExpertRanks& ranks_;
  std::optional<comm::Exchange> exchange_;
  std::optional<comm::PendingRows> there_, back_;
};

/// Makes chunks of slots. If `copies` groups of ranks hold each expert whole, each group gets every
/// copies-th slot.
std::vector<std::unique_ptr<Chunk>> padded_chunks(const at::Tensor& x, const at::Tensor& weight,
                                                  const Choices& parts, const LocalExperts& experts,
                                                  const ExpertRanks& ranks,
                                                  const ExpertLayout& layout, int64_t capacity) {
  const Placement& placement = ranks.placement;
  user_check(!layout.hierarchical || placement.experts % placement.holders() == 0,
             "2DH of rows that are padded to a capacity needs as many experts on every rank, but "
             "{} are spread over {}",
             placement.experts, placement.holders());
  const int64_t part_count = Parts{placement}.count(), copies = placement.cut / layout.shards;
  std::vector<std::unique_ptr<Chunk>> chunks;
  for (int64_t i = 0; i < layout.overlap; ++i) {
    const int64_t first = capacity * i / layout.overlap, end = capacity * (i + 1) / layout.overlap;
    const at::Tensor inside = parts.slot.ge(first).logical_and_(parts.slot.lt(end));
    const at::Tensor slot = at::where(inside, parts.slot - first, -1).to(at::kInt);
    chunks.push_back(std::make_unique<PaddedChunk>(
        x, weight,
        padded_dispatch(parts.expert, slot, part_count, (end - first + copies - 1) / copies),
        experts, ranks, layout.hierarchical));
  }
  return chunks;
}

/// Numbers of a dropless chunk that this rank receives.
struct Coming {
  std::vector<std::vector<int64_t>> choices;  ///< by sender and own expert
  std::vector<int64_t> rows;                  ///< by sender
};

/// Chunk of tokens without padding.
class DroplessChunk final : public Chunk {
 public:
  DroplessChunk(at::Tensor x, const at::Tensor& weight, const Choices& parts,
                const LocalExperts& experts, const ExpertRanks& ranks)
      : x_(std::move(x)), experts_(experts), ranks_(ranks) {
    const Placement& placement = ranks.placement;
    by_part_ = dispatch(parts.expert, parts.slot, Parts{placement}.count()).rows();
    sent_ = sent_rows(by_part_, placement, x_.size(0));
    sent_.rows = on_device(std::move(sent_.rows), x_.size(0), placement.ranks, x_.device());
    weight_of_part_ = weight.reshape(-1).index_select(0, by_part_.choice.to(x_.device()));
    const int64_t own = placement.count(placement.holder(ranks.group->rank()));
    width_ = std::min(weight.size(1), own);
  }

  /// Returns the number of choices of a part, or of rows to a rank.
  int64_t choices(int64_t part) const { return by_part_.count(part); }
  int64_t rows(int rank) const { return sent_.rows.count(rank); }

  void expect(Coming coming, comm::Exchange rows, comm::Exchange choices) {
    coming_ = std::move(coming);
    rows_.emplace(std::move(rows));
    choices_.emplace(std::move(choices));
  }

  void start() override {
    row_of_part_.emplace(comm::start_all_to_all(sent_.row_of_part, *choices_));
    weights_.emplace(comm::start_all_to_all(weight_of_part_, *choices_));
    there_.emplace(comm::start_all_to_all(dispatch_rows(x_, sent_.rows), *rows_, ranks_.dispatch));
  }

  void compute() override {
    ArrivedChoices arrived =
        arrived_choices(coming_.choices, coming_.rows, row_of_part_->wait(), width_);
    const int64_t rows = rows_->rows_received();
    const DispatchedRows by_expert =
        on_device(std::move(arrived.by_expert), rows, width_, x_.device());
    const at::Tensor of_arrival = weights_->wait();
    const at::Tensor weight =
        at::zeros({rows * width_}, of_arrival.options().requires_grad(false))
            .index_copy(0, arrived.choice_of_arrival.to(x_.device()), of_arrival)
            .view({rows, width_});
    const at::Tensor x = there_->wait();
    back_.emplace(
        start_back(run_experts(x, weight, by_expert, experts_), x.scalar_type(), *rows_, ranks_));
  }

  at::Tensor finish() override {
    const at::Tensor y = sum_rows(back_->wait(), sent_.rows, x_.size(0));
    return y.to(weight_of_part_.scalar_type());
  }

 private:
  at::Tensor x_;
  at::Tensor weight_of_part_;  // (R) in the order of by_part_
  const LocalExperts& experts_;
  const ExpertRanks& ranks_;
  DispatchedRows by_part_;
  SentRows sent_;
  int64_t width_ = 1;  // maximum number of choices of a received row
  Coming coming_;
  std::optional<comm::Exchange> rows_, choices_;
  std::optional<comm::PendingRows> row_of_part_, weights_, there_, back_;
};

/// Exchanges the numbers of choices and rows of all chunks at once.
void exchange_counts(const std::vector<std::unique_ptr<DroplessChunk>>& chunks,
                     const ExpertRanks& ranks, const ExpertLayout& layout) {
  const Placement& placement = ranks.placement;
  const Parts parts{placement};
  const int64_t own = placement.count(placement.holder(ranks.group->rank())),
                n = std::ssize(chunks);
  comm::Splits splits;  // for each rank: its parts, and one line for the rows
  for (int rank = 0; rank < placement.ranks; ++rank) {
    splits.send.push_back(placement.count(placement.holder(rank)) + 1);
    splits.receive.push_back(own + 1);
  }
  const at::Tensor table = at::empty({parts.count() + placement.ranks, n}, at::kLong);
  auto* next = table.mutable_data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> rows(chunks.size()), choices(chunks.size());
  for (int rank = 0; rank < placement.ranks; ++rank) {
    for (auto* list : {&rows, &choices})
      for (auto& of_chunk : *list) of_chunk.push_back(0);
    const int64_t first = parts.first(rank),
                  end = first + splits.send[static_cast<size_t>(rank)] - 1;
    for (int64_t part = first; part < end; ++part) {
      for (size_t c = 0; c < chunks.size(); ++c)
        choices[c].back() += * next++ = chunks[c]->choices(part);
    }
    for (size_t c = 0; c < chunks.size(); ++c) rows[c].back() = *next++ = chunks[c]->rows(rank);
  }
  const at::Tensor received = comm::Exchange(ranks.group, splits).start(table).wait();
  const auto* from = received.const_data_ptr<int64_t>();
  std::vector<Coming> coming(chunks.size());
  std::vector<std::vector<int64_t>> choices_coming(chunks.size());
  for (int rank = 0; rank < placement.ranks; ++rank) {
    for (size_t c = 0; c < chunks.size(); ++c) {
      coming[c].choices.emplace_back();
      choices_coming[c].push_back(0);
    }
    for (int64_t e = 0; e < own; ++e) {
      for (size_t c = 0; c < chunks.size(); ++c) {
        choices_coming[c].back() += *from;
        coming[c].choices.back().push_back(*from++);
      }
    }
    for (size_t c = 0; c < chunks.size(); ++c) coming[c].rows.push_back(*from++);
  }
  std::vector<comm::Exchange> exchanges;  // exchanges of the rows, then of the choices
  if (layout.hierarchical) {
    std::vector<std::vector<int64_t>> sends = rows;
    sends.insert(sends.end(), choices.begin(), choices.end());
    exchanges = comm::Exchange::hierarchical(*ranks.nodes, sends);
  } else {
    for (size_t c = 0; c < chunks.size(); ++c)
      exchanges.emplace_back(ranks.group, comm::Splits{rows[c], coming[c].rows});
    for (size_t c = 0; c < chunks.size(); ++c)
      exchanges.emplace_back(ranks.group, comm::Splits{choices[c], choices_coming[c]});
  }
  for (size_t c = 0; c < chunks.size(); ++c)
    chunks[c]->expect(std::move(coming[c]), exchanges[c], exchanges[chunks.size() + c]);
}

std::vector<std::unique_ptr<DroplessChunk>> dropless_chunks(
    const at::Tensor& x, const at::Tensor& weight, const Choices& parts,
    const LocalExperts& experts, const ExpertRanks& ranks, const ExpertLayout& layout) {
  const auto xs = x.tensor_split(layout.overlap),
             weights = shard_weight(weight, layout).tensor_split(layout.overlap),
             expert = parts.expert.tensor_split(layout.overlap),
             slot = parts.slot.tensor_split(layout.overlap);
  std::vector<std::unique_ptr<DroplessChunk>> chunks;
  chunks.reserve(xs.size());
  for (size_t i = 0; i < xs.size(); ++i)
    chunks.push_back(std::make_unique<DroplessChunk>(xs[i], weights[i], Choices{expert[i], slot[i]},
                                                     experts, ranks));
  exchange_counts(chunks, ranks, layout);
  return chunks;
}

/// Runs chunks in the order start 0, start 1, compute 0, start 2, compute 1, ... Returns their
/// results.
template <class AnyChunk>
std::vector<at::Tensor> run(const std::vector<std::unique_ptr<AnyChunk>>& chunks) {
  chunks.front()->start();
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i + 1 < chunks.size()) chunks[i + 1]->start();
    chunks[i]->compute();
  }
  std::vector<at::Tensor> y;
  y.reserve(chunks.size());
  for (const auto& chunk : chunks) y.push_back(chunk->finish());
  return y;
}

}  // namespace

at::Tensor exchange_rows(const at::Tensor& x, const at::Tensor& weight, const Choices& parts,
                         const LocalExperts& local, const ExpertRanks& ranks,
                         const ExpertLayout& layout, std::optional<int64_t> capacity) {
  if (!capacity) {
    const auto y = run(dropless_chunks(x, weight, parts, local, ranks, layout));
    return y.size() == 1 ? y[0] : at::cat(y);
  }
  const auto y =
      run(padded_chunks(x, shard_weight(weight, layout), parts, local, ranks, layout, *capacity));
  at::Tensor sum = y[0];
  for (size_t i = 1; i < y.size(); ++i) sum = sum + y[i];
  return sum;
}

}  // namespace dovetail::moe
