#include "dovetail/plan/record/batch.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::plan {
namespace {

class Line {
 public:
  Line(int64_t from, int64_t to, int64_t at) : run_(to - from), distance_(at - from) {}

  int64_t through(int64_t a, int64_t b, const std::string& what) const {
    const int64_t rise = (b - a) * distance_;
    user_check(rise % run_ == 0 && a + rise / run_ >= 0,
               "plan: {} is {} and {} in two batches, which no line extends", what, a, b);
    return a + rise / run_;
  }
  std::vector<int64_t> through(const std::vector<int64_t>& a, const std::vector<int64_t>& b,
                               const std::string& what) const {
    user_check(a.size() == b.size(), "plan: {} has {} and {} dimensions in two batches", what,
               a.size(), b.size());
    std::vector<int64_t> out(a.size());
    for (size_t i = 0; i < a.size(); ++i) out[i] = through(a[i], b[i], what);
    return out;
  }

 private:
  int64_t run_, distance_;
};

void extend(const Line& line, const CapturedOperation& a, CapturedOperation& out) {
  for (size_t i = 0; i < out.arguments.size(); ++i) {
    const std::string what = "a tensor of " + a.name;
    user_check(a.arguments[i].uses.size() == out.arguments[i].uses.size(),
               "plan: {} takes {} and {} tensors", a.name, a.arguments[i].uses.size(),
               out.arguments[i].uses.size());
    for (size_t u = 0; u < out.arguments[i].uses.size(); ++u) {
      const TensorUse& before = a.arguments[i].uses[u];
      TensorUse& use = out.arguments[i].uses[u];
      user_check(before.storage == use.storage && before.dtype == use.dtype,
                 "plan: {} takes other tensors", a.name);
      use.sizes = line.through(before.sizes, use.sizes, what);
      use.strides = line.through(before.strides, use.strides, what);
      use.offset = line.through(before.offset, use.offset, what);
    }
  }
}

/// Keeps only allocations that hold tensors, in their order.
void keep_made(CapturedOperation& operation, const std::vector<CapturedStorage>& storages) {
  std::vector<std::pair<int, size_t>> kept;  // allocation, index into makes
  for (size_t m = 0; m < operation.makes.size(); ++m)
    if (operation.makes_allocation[m] >= 0) kept.emplace_back(operation.makes_allocation[m], m);
  std::sort(kept.begin(), kept.end());
  operation.memory.clear();
  for (size_t k = 0; k < kept.size(); ++k) {
    const auto allocation = static_cast<int>(k);
    operation.makes_allocation[kept[k].second] = allocation;
    operation.memory.push_back(
        {allocation, storages[operation.makes[kept[k].second]].bytes, false});
  }
}

}  // namespace

CapturedStep at_batch(const RecordedBatch& a, const RecordedBatch& b, int64_t batch) {
  user_check(a.batch > 0 && b.batch > 0 && batch > 0 && a.batch != b.batch,
             "plan: batches of {}, {} and {}: all are positive, and the recorded ones different",
             a.batch, b.batch, batch);
  const Line line(a.batch, b.batch, batch);
  CapturedStep out = b.step;
  user_check(a.step.operations.size() == out.operations.size() &&
                 a.step.storages.size() == out.storages.size(),
             "plan: a batch of {} takes {} operations and {} storages, one of {} {} and {}",
             a.batch, a.step.operations.size(), a.step.storages.size(), b.batch,
             out.operations.size(), out.storages.size());
  for (size_t s = 0; s < out.storages.size(); ++s) {
    CapturedStorage& storage = out.storages[s];
    user_check(a.step.storages[s].name == storage.name, "plan: {} in one batch is {} in the other",
               a.step.storages[s].name, storage.name);
    storage.bytes = line.through(a.step.storages[s].bytes, storage.bytes, storage.name);
  }
  for (size_t o = 0; o < out.operations.size(); ++o) {
    const CapturedOperation& before = a.step.operations[o];
    CapturedOperation& operation = out.operations[o];
    user_check(
        before.name == operation.name && before.arguments.size() == operation.arguments.size() &&
            before.reads == operation.reads && before.writes == operation.writes &&
            before.makes == operation.makes,
        "plan: operation {} is {} in one batch and {} in the other, or works on other tensors", o,
        before.name, operation.name);
    extend(line, before, operation);
    keep_made(operation, out.storages);
  }
  return out;
}

}  // namespace dovetail::plan
