#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::comm {

/// Communication among the ranks of a job. One process has one world. A job of one rank needs no
/// network, and its calls return at once.
///
/// All ranks must make the same calls in the same order, with tensors of the same shape and dtype.
/// Only one thread uses a group. Tensors are contiguous and on the CPU or this rank's GPU
/// (InternalError otherwise). A call on a GPU tensor starts after the work queued on torch's
/// current stream. `wait` makes that stream wait.
///
/// If a rank dies or stays silent for `timeout_s`, every other rank throws CommError. The error
/// names the call and the missing rank. All ranks throw within milliseconds of each other, because
/// the first one to notice closes its connections. The group is then unusable, and every later call
/// throws again.
///
/// Making a group of several ranks sets SIGPIPE to ignored if it has its default action. Otherwise
/// a dead peer would end this rank. The same world size and calls give the same bits. Sums over
/// different world sizes differ by rounding.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Sums over ranks, in place and in the tensor's dtype: float64, float32, bfloat16, float16,
  /// int64, int32, int8 or uint8.
  virtual void all_reduce(at::Tensor& tensor) = 0;

  /// A running collective. After `wait` the output is complete. An all-reduce sends 2 (n-1)/n of
  /// the tensor's bytes per rank.
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;
  };
  virtual std::unique_ptr<Work> all_reduce_async(at::Tensor tensor) = 0;

  /// Sums over ranks and gives each rank one part of the result, in place. tensor (n c), dtypes as
  /// in all_reduce. After `wait`, elements [rank() c, (rank() + 1) c) hold the sum; the others are
  /// undefined. Throws InternalError if the ranks do not divide the elements. Each rank sends at
  /// most the tensor's bytes. Gloo runs one reduce per rank, because c10d's reduce-scatter for Gloo
  /// all-reduces a copy.
  virtual std::unique_ptr<Work> reduce_scatter_async(at::Tensor tensor) = 0;

  /// Copies the tensor of rank `root` to all ranks, in place, any dtype.
  virtual void broadcast(at::Tensor& tensor, int root) = 0;
  /// Returns a copy of every rank's tensor, any dtype. result[r] is from rank r.
  virtual std::vector<at::Tensor> all_gather(const at::Tensor& tensor) = 0;
  virtual void barrier() = 0;

  /// Exchanges rows with every rank. Rank r gets rows [send[0] + ... + send[r-1], ... + send[r]) of
  /// this rank's `input`. Rows in `output` are ordered by sending rank.
  ///
  /// input has shape (sum of send, ...), any dtype. output has shape (sum of receive, ...), with
  /// the same dtype and row shape. Any count may be 0. receive[r] is rank r's send[rank()];
  /// `exchange_sizes` (comm/exchange.h) finds it. Counts that disagree are not detected here: Gloo
  /// ends the process.
  ///
  /// Every rank of the group calls it, even without rows. It takes 1 step, all pairs at once. A
  /// rank sends the bytes of the rows for other ranks, in n - 1 messages.
  virtual std::unique_ptr<Work> all_to_all_async(at::Tensor output, const at::Tensor& input,
                                                 const std::vector<int64_t>& receive,
                                                 const std::vector<int64_t>& send) = 0;

  /// Cost of this rank's all-to-alls since the group was made. Rows that stay on this rank do not
  /// count.
  struct Traffic {
    int64_t calls = 0, bytes_sent = 0, bytes_received = 0;
    double waited_s = 0;  ///< time spent in `wait`: communication that was not hidden
  };
  virtual Traffic all_to_all_traffic() const = 0;

  /// Makes a group for each of `parts`. Returns the one with this rank. Its ranks have the order of
  /// that part.
  ///
  /// All ranks of the group pass the same parts, and each rank is in exactly one part
  /// (InternalError otherwise). All ranks make the same splits in the same order. The new group has
  /// its own connections, so its calls need no order relative to calls of this group. One thread
  /// uses both.
  ///
  /// A failure in one group ends all groups that come from one world, on every rank. Errors name
  /// ranks of the world.
  virtual std::shared_ptr<Group> split(const std::vector<std::vector<int>>& parts) = 0;
};

/// Failure of the network or of another rank. The command exits with 1, and torchrun may restart
/// the job.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct GroupOptions {
  /// Limit for connecting, and for each call. A call's time starts when its predecessors on this
  /// rank are done.
  double timeout_s = 60;
};

/// Makes the world from torchrun's environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
/// TORCHELASTIC_RESTART_COUNT. Without RANK it is a group of one. GLOO_SOCKET_IFNAME chooses the
/// network interface. By default a job on one machine (LOCAL_WORLD_SIZE = WORLD_SIZE) uses
/// loopback. A larger job uses the interface of the host's name. Throws UserError naming a missing
/// or wrong variable. Throws CommError if the ranks do not find one another in time.
std::shared_ptr<Group> world_from_environment(const GroupOptions& options = {});

/// Number of ranks on this machine, and this rank's index among them: torchrun's LOCAL_WORLD_SIZE
/// and LOCAL_RANK. Without these variables all ranks are threads of one process, so they all count.
/// Throws UserError if a variable is not a valid number.
struct Neighbours {
  int rank = 0, size = 1;
};
Neighbours neighbours_of(const Group& group);

/// Returns true if torchrun restarted this job after a rank died.
bool restarted_by_torchrun();

/// Makes a group of `size` ranks that are threads of this process, for tests. They use Gloo over
/// loopback and a hash store. The group of rank r is result[r].
std::vector<std::shared_ptr<Group>> local_groups(int size, const GroupOptions& options = {});

/// Gathers byte strings of any lengths. The result has one per rank, on every rank. Uses one
/// all_gather if no string exceeds `expected` bytes, otherwise a second one for the rest.
/// `expected` is the same on all ranks.
std::vector<std::string> all_gather_bytes(Group& group, std::string_view bytes,
                                          int64_t expected = 0);

/// Throws CommError("<what>: rank r: <message>") on all ranks if any rank passes a non-empty
/// message. The error contains all messages.
void agree(Group& group, const std::string& what, const std::string& error_message);

}  // namespace dovetail::comm
