#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"

namespace c10d {
class Store;
}

namespace dovetail::comm {

/// Makes a world of `size` ranks over Gloo, as seen by rank `rank`. The ranks find each other
/// through `store`. Returns when all are connected. `interface` is the name of a network interface.
/// "" means the interface to which the host's name resolves. "lo" means the loopback interface,
/// whatever its name. Throws CommError if connecting fails.
std::shared_ptr<Group> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size, const std::string& interface,
                                       const GroupOptions& options);

/// Makes the group of a job with a single rank.
std::shared_ptr<Group> make_group_of_one();

/// Checks the arguments of Group::all_to_all_async in a group of `size` ranks. Throws InternalError
/// if counts and tensors do not match.
void check_all_to_all(const at::Tensor& output, const at::Tensor& input,
                      const std::vector<int64_t>& receive, const std::vector<int64_t>& send,
                      int size);

/// Bytes that each rank receives and sends in an all-to-all.
struct AllToAllBytes {
  std::vector<int64_t> receive, send;
};
/// Checks the arguments of Group::all_to_all_async and converts its counts of rows to bytes. Adds
/// the call to `traffic` of rank `rank` in a group of `size` ranks.
AllToAllBytes count_all_to_all(const at::Tensor& output, const at::Tensor& input,
                               const std::vector<int64_t>& receive,
                               const std::vector<int64_t>& send, int rank, int size,
                               Group::Traffic& traffic);

/// Views a contiguous tensor as bytes, for calls that only copy data.
at::Tensor bytes_of(const at::Tensor& tensor);

}  // namespace dovetail::comm
