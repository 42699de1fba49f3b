#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace c10d {
class Store;
}

namespace dovetail::comm {

/// Ranks that communicate. A rank is one process of a job. The world is the group of all ranks of a
/// job; a process has one world. A group of one rank needs no network, and its calls return at
/// once.
///
/// All ranks must make the same calls in the same order, with tensors of the same shape and dtype.
/// Only one thread uses a group. Tensors are contiguous and on the CPU or this rank's GPU
/// (InternalError otherwise). A call on a GPU tensor starts after the work queued on torch's
/// current stream. `wait` makes that stream wait.
///
/// If a rank dies or stays silent for `timeout_s`, every other rank throws CommError. The error
/// names the call and the missing rank. The first rank to notice closes its connections. All ranks
/// therefore throw within milliseconds of each other. The group is then unusable, and every later
/// call throws again.
///
/// Making a group of several ranks sets SIGPIPE to ignored if it has its default action. Otherwise
/// a dead peer would end this rank. The same world size and calls give the same bits. Sums over
/// different world sizes differ by rounding.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;  ///< this rank's index in the group, from 0
  virtual int size() const = 0;  ///< number of ranks n

  /// Sums over ranks, in place and in the tensor's dtype: float64, float32, bfloat16, float16,
  /// int64, int32, int8 or uint8.
  virtual void all_reduce(at::Tensor& tensor) = 0;

  /// A running collective. After `wait` the output is complete.
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;
  };
  /// Starts `all_reduce` of `tensor`. Each rank sends 2 (n-1)/n of the tensor's bytes.
  virtual std::unique_ptr<Work> all_reduce_async(at::Tensor tensor) = 0;

  /// Starts to sum over ranks, in place. Each rank gets one part of the result. `tensor` has n c
  /// elements, c for each rank, in a dtype that all_reduce supports. After `wait`, elements [rank()
  /// c, (rank() + 1) c) hold the sum; the others are undefined. Throws InternalError if n does not
  /// divide the number of elements. Each rank sends at most the tensor's bytes. The implementation
  /// is one reduce per rank. (c10d's reduce-scatter for Gloo all-reduces a copy.)
  virtual std::unique_ptr<Work> reduce_scatter_async(at::Tensor tensor) = 0;

  /// Copies the tensor of rank `root` to all ranks, in place, any dtype.
  virtual void broadcast(at::Tensor& tensor, int root) = 0;
  /// Returns a copy of every rank's tensor, any dtype. result[r] is from rank r.
  virtual std::vector<at::Tensor> all_gather(const at::Tensor& tensor) = 0;
  /// Returns when all ranks have called it.
  virtual void barrier() = 0;

  /// Starts to exchange rows with every rank. Rank r gets send[r] rows of this rank's `input`,
  /// which are ordered by r. Rows in `output` are ordered by sending rank.
  ///
  /// input has shape (sum of send, ...), any dtype. output has shape (sum of receive, ...), with
  /// the same dtype and row shape. Any count may be 0. receive[r] must equal send[rank()] on rank
  /// r; `exchange_sizes` (comm/exchange.h) finds it. Counts that disagree are not detected here:
  /// Gloo ends the process.
  ///
  /// Every rank of the group calls it, even without rows. It takes 1 communication step, in which
  /// all pairs of ranks exchange rows. A rank sends the bytes of the rows for other ranks, in n - 1
  /// messages.
  virtual std::unique_ptr<Work> all_to_all_async(at::Tensor output, const at::Tensor& input,
                                                 const std::vector<int64_t>& receive,
                                                 const std::vector<int64_t>& send) = 0;

  /// Totals of this rank's all-to-alls since the group was made. Bytes of rows that stay on this
  /// rank do not count.
  struct Traffic {
    int64_t calls = 0, bytes_sent = 0, bytes_received = 0;
    /// Seconds spent in `wait`: time of communication that did not overlap with other work.
    double waited_s = 0;
  };
  virtual Traffic all_to_all_traffic() const = 0;

  /// Makes a group for each of `parts`, which are lists of ranks of this group. Returns the new
  /// group that contains this rank. Its ranks are numbered in the order of their list in `parts`.
  ///
  /// All ranks of the group pass the same parts, and each rank is in exactly one part
  /// (InternalError otherwise). All ranks make the same splits in the same order. The new group has
  /// its own connections, so its calls need no order relative to calls of this group. One thread
  /// uses both.
  ///
  /// A failure in one group ends all groups that come from one world, on every rank. Errors name
  /// ranks of the world.
  virtual std::shared_ptr<Group> split(const std::vector<std::vector<int>>& parts) = 0;

  /// Returns "none", "Gloo" or "NCCL": the library that moves tensors of a GPU.
  virtual std::string gpu_library() const = 0;

  /// Means by which the ranks of a group find each other.
  struct Connections {
    c10::intrusive_ptr<c10d::Store> store;  ///< key-value store of the group; null if it has 1 rank
    double timeout_s = 0;
  };
  virtual Connections connections() const = 0;
};

/// Returns the group that ranks with GPUs use. If each rank has a GPU of its own, tensors of a GPU
/// go through NCCL, from GPU to GPU. Otherwise the result is `group`, in which Gloo copies them
/// through host memory. All ranks call it together, after `use_gpu` (base/gpu.h).
///
/// With NCCL, `wait` makes torch's current stream wait, not the host. An error or a timeout aborts
/// NCCL's connections, and the next call of the group throws CommError.
std::shared_ptr<Group> on_gpus(std::shared_ptr<Group> group);

/// Failure of the network or of another rank. The program then exits with code 1, and torchrun may
/// restart the job.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct GroupOptions {
  /// Maximum seconds for connecting, and for each call. A call's time starts when the previous
  /// calls of this rank are done.
  double timeout_s = 60;
};

/// Makes the world from torchrun's environment variables: RANK, WORLD_SIZE, MASTER_ADDR,
/// MASTER_PORT and TORCHELASTIC_RESTART_COUNT. Without RANK it is a group of one.
/// GLOO_SOCKET_IFNAME chooses the network interface. By default a job on one machine
/// (LOCAL_WORLD_SIZE = WORLD_SIZE) uses loopback. A larger job uses the interface to which the
/// host's name resolves. Throws UserError naming a missing or wrong variable. Throws CommError if
/// the ranks do not find one another in time.
std::shared_ptr<Group> world_from_environment(const GroupOptions& options = {});

/// Makes a group of the `size` processes that share `store`, as seen by rank `rank`. Nothing else
/// uses the store's keys. The network interface is chosen as world_from_environment does. Throws
/// CommError if the ranks do not find one another in time.
std::shared_ptr<Group> group_over_store(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                        int size, const GroupOptions& options = {});

/// Ranks on this machine: their number `size`, and this rank's index `rank` among them.
struct Neighbours {
  int rank = 0, size = 1;
};
/// Reads torchrun's LOCAL_WORLD_SIZE and LOCAL_RANK. Without these variables all ranks of `group`
/// are threads of this process, so all are on this machine. Throws UserError if a variable is not a
/// valid number.
Neighbours neighbours_of(const Group& group);

/// Returns true if torchrun restarted this job after a rank died.
bool restarted_by_torchrun();

/// Makes a world of `size` ranks that are threads of this process, for tests. They use Gloo over
/// loopback and a hash store. result[r] is for the thread of rank r.
std::vector<std::shared_ptr<Group>> local_groups(int size, const GroupOptions& options = {});

/// Gathers byte strings of any lengths. Returns the strings of all ranks in rank order, on every
/// rank. Takes one all_gather if no string exceeds `expected` bytes, otherwise a second one for the
/// rest. `expected` is the same on all ranks.
std::vector<std::string> all_gather_bytes(Group& group, std::string_view bytes,
                                          int64_t expected = 0);

/// Throws CommError on all ranks if any rank passes a non-empty `error_message`. All ranks call it
/// together. The error contains all messages: "<what>: rank 1: <message>; rank 3: <message>".
void agree(Group& group, const std::string& what, const std::string& error_message);

}  // namespace dovetail::comm
