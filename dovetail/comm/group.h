#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dovetail {

/// The ranks of a job. One process has one world; a job of one rank needs no network and every call returns at once.
///
/// All ranks must make the same calls in the same order. When a rank dies or stays silent for `timeout_s`, every other rank
/// throws CommError naming what it was doing; the group is then unusable.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Sum over ranks, in place. Contiguous tensors of one dtype and device.
  virtual void all_reduce(at::Tensor& tensor) = 0;

  /// A running all-reduce; `wait` blocks until the tensor holds the sum. Bytes on the wire a rank: 2 (n-1)/n of the tensor's.
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;
  };
  virtual std::unique_ptr<Work> all_reduce_async(at::Tensor tensor) = 0;

  virtual void broadcast(at::Tensor& tensor, int root) = 0;
  virtual std::vector<at::Tensor> all_gather(const at::Tensor& tensor) = 0;  ///< same shape on every rank
  virtual void barrier() = 0;
};

class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct GroupOptions {
  double timeout_s = 60;
  bool cuda = false;  ///< NCCL for CUDA tensors
};

/// The world as torchrun describes it (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT); a group of
/// one when RANK is not set. Throws UserError naming the variable that is missing or wrong.
std::shared_ptr<Group> world_from_environment(const GroupOptions& options = {});

/// `size` ranks as threads of this process, for tests: result[r] is rank r's group (Gloo over loopback, hash store).
std::vector<std::shared_ptr<Group>> local_groups(int size, const GroupOptions& options = {});

/// All ranks throw CommError("<what>: rank r: <message>") if any rank passes a non-empty message.
void agree(Group& group, const std::string& what, const std::string& error_message);

}  // namespace dovetail
