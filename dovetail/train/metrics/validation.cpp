#include "dovetail/train/metrics/validation.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "dovetail/base/log.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"

namespace dovetail::train {
namespace {

/// Returns the w-th of `count` windows, evenly spread over `windows`; all windows if count ==
/// windows.
int64_t chosen_window(int64_t w, int64_t count, int64_t windows) { return w * windows / count; }

/// Sums over batches. The sum of losses stays on the model's device, so that no batch waits for the
/// previous one.
struct Sums {
  at::Tensor nats;  ///< float64 scalar; undefined before the first batch
  double tokens = 0;

  /// Adds a batch. tokens_bt: on the CPU.
  void add(models::GPT& model, const at::Tensor& tokens_bt) {
    const models::LossSum loss = model.loss(tokens_bt);
    const at::Tensor sum = loss.sum.to(at::kDouble);
    nats = nats.defined() ? nats + sum : sum;
    tokens += static_cast<double>(loss.weight);
  }
};

}  // namespace

void warn_of_later_tokens(const models::ModelConfig& model) {
  const std::string key = moe::reads_later_tokens(model.moe);
  if (key.empty()) return;
  log_warning(
      "validation loss: with model.moe.{} the experts of a token depend on later tokens, which a "
      "decoder lacks. So the loss is lower than in decoding and depends on train.micro_batch",
      key);
}

std::optional<Validation> validate(models::GPT& model, const data::TokenStore& store,
                                   comm::Group& group, const ValidationOptions& options) {
  const TraceSpan span("validate");
  const c10::NoGradGuard no_grad;
  const int64_t predicted = store.num_tokens(data::Split::kValidation) - 1;
  if (predicted < 1) return std::nullopt;
  const int64_t length = options.context;
  const int64_t windows = predicted / length;
  const bool all = options.max_tokens == 0 || options.max_tokens >= predicted;
  const int64_t count =
      all ? windows : std::min(windows, std::max<int64_t>(1, options.max_tokens / length));

  Sums sums;
  // If experts are spread, all ranks make the same number of forward passes, some of them empty.
  const bool together = model.expert_ranks() != nullptr;
  const auto add_windows = [&](int64_t first, int64_t size) {
    at::Tensor tokens_bt = at::empty({size, length + 1}, at::kLong);
    for (int64_t i = 0; i < size; ++i) {
      store.read(data::Split::kValidation, chosen_window(first + i, count, windows) * length,
                 length + 1, tokens_bt.data_ptr<int64_t>() + i * (length + 1));
    }
    if (size > 0 || together) sums.add(model, tokens_bt);
  };
  const int64_t begin = group.rank() * count / group.size(),
                end = (group.rank() + 1) * count / group.size();
  const int64_t most = (count + group.size() - 1) / group.size();
  for (int64_t done = 0; done < most; done += options.batch)
    add_windows(begin + done, std::clamp(end - begin - done, int64_t{0}, options.batch));
  // Tokens after the last whole window, or a split that is shorter than one window.
  const int64_t rest = predicted - windows * length;
  if ((all || windows == 0) && rest > 0) {
    const bool last = group.rank() == group.size() - 1;
    at::Tensor tokens_bt = at::empty({last ? 1 : 0, rest + 1}, at::kLong);
    if (last)
      store.read(data::Split::kValidation, windows * length, rest + 1,
                 tokens_bt.data_ptr<int64_t>());
    if (last || together) sums.add(model, tokens_bt);
  }

  const double nats = sums.nats.defined() ? sums.nats.item<double>() : 0.0;
  const std::vector<double> total = sum_over_ranks(group, {nats, sums.tokens});
  const double loss = total[0] / total[1];
  const double tokens_per_byte =
      static_cast<double>(store.num_tokens(data::Split::kValidation)) /
      static_cast<double>(std::max<uint64_t>(1, store.num_bytes(data::Split::kValidation)));
  return Validation{.loss = loss,
                    .nats_per_byte = loss * tokens_per_byte,
                    .tokens = static_cast<int64_t>(total[1])};
}

}  // namespace dovetail::train
