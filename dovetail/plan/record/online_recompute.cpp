#include "dovetail/plan/record/online_recompute.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "dovetail/base/error.h"
#include "dovetail/plan/device/step_device.h"
#include "dovetail/plan/model/index_list.h"
#include "dovetail/plan/record/operation_call.h"

namespace dovetail::plan {
namespace {

constexpr int64_t kLeastFreed = 4096;  // bytes; freeing less is not worth a recomputation
// Bytes. The process returns memory to the system whenever this much was freed.
constexpr int64_t kFreedAtOnce = 4 << 20;
// Maximum reruns per recorded operation. If more are needed, the limit is too low to be reached.
constexpr int64_t kMostAgain = 10;

/// Returns the maximum bytes that an operation holds allocated at the same time.
int64_t peak_of(const std::vector<MemoryEvent>& events) {
  int64_t now = 0, peak = 0;
  for (const MemoryEvent& event : events)
    peak = std::max(peak, now += event.ends ? -event.bytes : event.bytes);
  return peak;
}

}  // namespace

void OnlineRecompute::add(const at::Tensor& tensor, bool made) {
  const bool elsewhere = tensor.device() != step_.device;  // its memory does not count
  const auto bytes = elsewhere ? 0 : static_cast<int64_t>(tensor.storage().nbytes());
  entries_.push_back(
      {.impl = tensor.storage().getWeakStorageImpl(), .bytes = bytes, .made = made, .used = now_});
  readers_.emplace_back();
  if (!made) found_bytes_ += bytes;
}

at::Generator OnlineRecompute::random_generator() const {
  return at::globalContext().defaultGenerator(step_.device);
}

int64_t OnlineRecompute::held_bytes(bool everything_kept) const {
  int64_t bytes = found_bytes_;
  for (const Entry& entry : entries_)
    if (entry.made && (everything_kept ? entry.is_held() : entry.is_there())) bytes += entry.bytes;
  return bytes;
}

void OnlineRecompute::before(const CapturedOperation& operation) {
  ++now_;
  for (const int s : current_) --entries_[s].locks;
  current_ = operation.reads;
  for (const int s : operation.writes) add_once(current_, s);
  for (const int s : current_) {
    ++entries_[s].locks;
    entries_[s].used = now_;
  }
  std::vector<int> wanted = current_, lost;
  for (const int written : operation.writes)
    for (const int s : lost_by_writing(written)) {
      lost.push_back(s);
      if (entries_[s].is_held()) add_once(wanted, s);
    }
  fetch(wanted);
  for (const int s : lost) entries_[s].fixed = entries_[s].lost = true;
  const size_t index = runs_.size();
  const bool known = limit_.previous != nullptr && index < limit_.previous->operations.size() &&
                     limit_.previous->operations[index].name == operation.name;
  const int64_t need =
      known ? peak_of(limit_.previous->operations[index].memory) : most_[operation.name];
  kept_before_ = held_bytes(/*everything_kept=*/true);
  keep_all_bytes_ = std::max(keep_all_bytes_, kept_before_ + need);
  make_room(need);
  if (operation.random) random_ = random_generator().get_state();
}

void OnlineRecompute::after(bool gives_memory) {
  const CapturedOperation& operation = step_.operations.back();
  const int index = static_cast<int>(runs_.size());
  Run& run = runs_.emplace_back(
      Run{.random = operation.random ? random_ : at::Tensor(), .bytes = peak_of(operation.memory)});
  most_[operation.name] = std::max(most_[operation.name], run.bytes);
  keep_all_bytes_ =
      std::max({keep_all_bytes_, kept_before_ + run.bytes, held_bytes(/*everything_kept=*/true)});
  for (const int written : operation.writes) {
    for (const int s : lost_by_writing(written)) {
      Entry& entry = entries_[s];
      if (entry.is_held() && !entry.is_there())
        throw UserError(
            fmt::format("plan: {} changes {} unseen, which {} is made from: a recorded step within "
                        "a budget cannot recompute that",
                        operation.name, step_.storages[written].name, step_.storages[s].name),
            "name it in the operator's schema, or raise the budget");
      entry.fixed = entry.lost = true;
    }
  }
  for (const int s : operation.reads)
    if (!contains(operation.writes, s)) {
      run.reads.push_back(s);
      readers_[s].push_back(index);
    }
  const bool changes_one =
      operation.writes.size() == 1 && operation.makes.empty() && !operation.once;
  for (const int s : operation.writes) {
    Entry& entry = entries_[s];
    entry.fixed = entry.fixed || !changes_one;
    entry.without_values = false;
    entry.by.push_back(index);
    entry.seconds += operation.seconds;
  }
  for (const int s : operation.makes) {
    Entry& entry = entries_[s];
    entry.fixed = operation.once || !operation.writes.empty() || step_.storages[s].elsewhere;
    entry.without_values = gives_memory;
    entry.by = {index};
    entry.seconds = operation.seconds;
  }
  keep_sources(operation, run.reads);
  make_room(0);
}

/// Keeps fixed sources alive for results that can be recomputed. A lost source of backward is a
/// gradient that is still being summed. Autograd adds to it in place only if nobody else holds it.
/// Its results therefore become lost, too.
void OnlineRecompute::keep_sources(const CapturedOperation& operation,
                                   const std::vector<int>& reads) {
  std::vector<int> sources, results;
  bool lost = false;
  for (const int s : reads)
    if (const Entry& source = entries_[s]; source.made && source.fixed && source.is_held()) {
      sources.push_back(s);
      lost = lost || (source.lost && operation.backward);
    }
  for (const auto* list : {&operation.makes, &operation.writes})
    for (const int s : *list)
      if (entries_[s].made && !entries_[s].fixed) results.push_back(s);
  if (results.empty()) return;
  if (lost) {
    for (const int s : results) entries_[s].fixed = entries_[s].lost = true;
  } else {
    for (const int s : sources) held_.push_back(storage_of(s));
  }
}

void OnlineRecompute::restore() {
  std::vector<int> wanted;
  for (size_t s = 0; s < entries_.size(); ++s)
    if (entries_[s].made && entries_[s].is_held()) wanted.push_back(static_cast<int>(s));
  fetch(wanted);
}

c10::Storage OnlineRecompute::storage_of(int s) const {
  const Entry& entry = entries_[s];
  return entry.own ? *entry.own : c10::Storage(entry.impl.lock());
}

/// Returns the storages of `wanted` that are missing, and missing storages needed to recompute
/// them. The order is one in which they can be recomputed.
std::vector<int> OnlineRecompute::missing(const std::vector<int>& wanted) const {
  std::vector<int> out, open = wanted;
  std::unordered_set<int> seen(wanted.begin(), wanted.end());
  while (!open.empty()) {
    const int s = open.back();
    open.pop_back();
    if (entries_[s].is_there()) continue;
    DOVETAIL_CHECK(!entries_[s].fixed && !entries_[s].by.empty(), "{} cannot be recomputed",
                   step_.storages[s].name);
    out.push_back(s);
    for (const int operation : entries_[s].by)
      for (const int source : runs_[operation].reads)
        if (seen.insert(source).second) open.push_back(source);
  }
  std::ranges::sort(out, {}, [&](int s) { return entries_[s].by.back(); });
  return out;
}

void OnlineRecompute::fetch(const std::vector<int>& wanted) {
  const std::vector<int> order = missing(wanted);
  if (order.empty()) return;
  const auto for_each_source = [&](int s, const auto& visit) {
    for (const int operation : entries_[s].by)
      for (const int source : runs_[operation].reads) visit(entries_[source]);
  };
  for (const int s : wanted) ++entries_[s].locks;
  for (const int s : order) for_each_source(s, [](Entry& source) { ++source.locks; });
  for (const int s : order) {
    ++entries_[s].locks;
    if (!entries_[s].is_there())
      for (const int operation : entries_[s].by) rerun_operation(operation, s);
    DOVETAIL_CHECK(entries_[s].is_there(), "{} was not recomputed", step_.storages[s].name);
    --entries_[s].locks;
    entries_[s].used = now_;
    for_each_source(s, [](Entry& source) {
      if (--source.locks == 0 && !source.is_held()) source.own.reset();
    });
  }
  for (const int s : wanted) --entries_[s].locks;
}

void OnlineRecompute::rerun_operation(int index, int wanted) {
  const CapturedOperation& operation = step_.operations[index];
  make_room(runs_[index].bytes);
  ++again_;
  at::Generator generator = random_generator();
  at::Tensor random_now;
  if (operation.random) {
    random_now = generator.get_state();
    generator.set_state(runs_[index].random);
  }
  std::unordered_set<const c10::StorageImpl*> seen;
  const torch::jit::Stack results = call(operation, [&](int s) {
    c10::Storage storage = storage_of(s);
    seen.insert(storage.unsafeGetStorageImpl());
    return storage;
  });
  if (operation.random) generator.set_state(random_now);
  size_t made = 0;
  for_each_tensor(results, [&](const at::Tensor& tensor) {
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (!seen.insert(storage).second) return;
    const int s = operation.makes.at(made++);
    Entry& entry = entries_[s];
    if (step_.storages[s].elsewhere) return;  // the first one is kept
    DOVETAIL_CHECK(static_cast<int64_t>(storage->nbytes()) == entry.bytes,
                   "{} gives other sizes again", operation.name);
    const bool is_whole = entry.by.size() == 1;  // no later operation has changed it
    if (entry.is_there() || (s != wanted && (entry.locks == 0 || !is_whole))) return;
    if (entry.is_held()) {
      entry.impl.lock()->set_data_ptr_noswap(
          storage->set_data_ptr(c10::DataPtr(nullptr, step_.device)));
      entry.freed = false;
    } else {
      entry.own = tensor.storage();
    }
  });
}

double OnlineRecompute::cost(const Entry& entry) const {
  double seconds = entry.seconds;
  for (const int operation : entry.by)
    for (const int s : runs_[operation].reads)
      if (!entries_[s].is_there()) seconds += entries_[s].seconds + entries_[s].missing_s;
  return seconds;
}

void OnlineRecompute::make_room(int64_t bytes) {
  int64_t held = held_bytes(/*everything_kept=*/false);
  if (again_ > kMostAgain * static_cast<int64_t>(runs_.size()))
    allowance_ = std::max(allowance_, held + bytes);
  const int64_t limit =
      std::max(allowance_, limit_.bytes(std::max({keep_all_bytes_, found_bytes_, kLeastFreed})));
  if (held + bytes <= limit) return;
  while (held + bytes > limit) {
    Entry* cheapest = nullptr;
    double least = std::numeric_limits<double>::max();
    for (Entry& entry : entries_) {
      if (!entry.made || entry.fixed || entry.without_values || entry.locks > 0 ||
          entry.bytes < kLeastFreed || !entry.is_there())
        continue;
      const double score = cost(entry) / (static_cast<double>(entry.bytes) *
                                          static_cast<double>(1 + now_ - entry.used));
      if (score < least) {
        least = score;
        cheapest = &entry;
      }
    }
    if (cheapest == nullptr) break;
    cheapest->missing_s = cost(*cheapest) - cheapest->seconds;
    held -= cheapest->bytes;
    freed_bytes_ += cheapest->bytes;
    if (cheapest->is_held()) {
      cheapest->impl.lock()->set_data_ptr_noswap(c10::DataPtr(nullptr, step_.device));
      cheapest->freed = true;
    }
    cheapest->own.reset();
  }
  if (freed_bytes_ < kFreedAtOnce) return;
  step_device(step_.device).give_back_freed();
  freed_bytes_ = 0;
}

/// Returns storages that cannot be recomputed after `storage` has changed, since their operations
/// read it.
std::vector<int> OnlineRecompute::lost_by_writing(int storage) const {
  std::vector<int> out, open = {storage};
  std::unordered_set<int> seen = {storage};
  while (!open.empty()) {
    const int s = open.back();
    open.pop_back();
    for (const int operation : readers_[s])
      for (const auto* list :
           {&step_.operations[operation].makes, &step_.operations[operation].writes})
        for (const int result : *list) {
          if (!entries_[result].made || entries_[result].lost || !seen.insert(result).second)
            continue;
          out.push_back(result);
          open.push_back(result);
        }
  }
  return out;
}

}  // namespace dovetail::plan
