#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

#include "dovetail/comm/group.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace dovetail::comm {

/// Functions of the CUDA library that need NCCL.
struct NcclCalls {
  /// Makes NCCL's backend for rank `rank` of `size` ranks. Its connections open in the first call.
  /// A call that takes longer than `timeout_s` ends in an error.
  c10::intrusive_ptr<c10d::Backend> (*make_backend)(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size, double timeout_s);
  /// Returns the PCI bus ID of this thread's current GPU, for example "0000:3b:00.0".
  std::string (*bus_id)();
};

/// Returns the functions, or null in a build without the CUDA library. Requires `load_gpu`
/// (base/gpu.h).
const NcclCalls* nccl_calls();

/// Makes a group whose tensors of a GPU go through NCCL. `control` has the same ranks and carries
/// CPU tensors and `barrier`. Each rank of `control` calls it together and has a GPU of its own,
/// which is the current one. `store` is shared by the ranks and used by this group alone.
std::shared_ptr<Group> make_nccl_group(std::shared_ptr<Group> control,
                                       c10::intrusive_ptr<c10d::Store> store, double timeout_s);

/// Name of the function in the CUDA library that returns the functions: `const NcclCalls*
/// dovetail_nccl_calls()`.
inline constexpr const char* kNcclEntry = "dovetail_nccl_calls";

}  // namespace dovetail::comm
