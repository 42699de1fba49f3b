#include "dovetail/base/affinity.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>

#include <memory>

#include "dovetail/base/error.h"

namespace dovetail {
namespace {

using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;

/// Returns the processors in `usable`, grouped by core and in ascending order. Processors that
/// hwloc assigns to no core form one group each.
std::vector<std::vector<int>> processors_by_core(hwloc_topology_t topology,
                                                 hwloc_const_bitmap_t usable) {
  std::vector<std::vector<int>> cores;
  const Bitmap left(hwloc_bitmap_dup(usable), hwloc_bitmap_free);
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
    std::vector<int> processors;
    for (int i = -1; (i = hwloc_bitmap_next(core->cpuset, i)) != -1;) {
      if (hwloc_bitmap_isset(left.get(), static_cast<unsigned>(i)) == 0) continue;
      processors.push_back(i);
      hwloc_bitmap_clr(left.get(), static_cast<unsigned>(i));
    }
    if (!processors.empty()) cores.push_back(std::move(processors));
  }
  for (int i = -1; (i = hwloc_bitmap_next(left.get(), i)) != -1;) cores.push_back({i});
  return cores;
}

}  // namespace

std::vector<int> usable_processors() {
  hwloc_topology_t raw = nullptr;
  DOVETAIL_CHECK(hwloc_topology_init(&raw) == 0 && hwloc_topology_load(raw) == 0,
                 "hwloc does not start");
  const Topology topology(raw, hwloc_topology_destroy);
  const Bitmap mask(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  const auto* allowed = hwloc_topology_get_allowed_cpuset(raw);
  if (hwloc_get_cpubind(raw, mask.get(), HWLOC_CPUBIND_PROCESS) != 0)
    hwloc_bitmap_copy(mask.get(), allowed);
  hwloc_bitmap_and(mask.get(), mask.get(), allowed);
  const auto cores = processors_by_core(raw, mask.get());
  std::vector<int> processors;
  for (size_t round = 0, before = 1; before != processors.size(); ++round) {
    before = processors.size();
    for (const auto& core : cores)
      if (round < core.size()) processors.push_back(core[round]);
  }
  return processors;
}

void bind_thread(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  DOVETAIL_CHECK(::pthread_setaffinity_np(::pthread_self(), sizeof(set), &set) == 0,
                 "the system does not bind a thread to processor {}", processor);
}

}  // namespace dovetail
