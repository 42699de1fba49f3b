#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail {

/// The ranks of a job. One process has one world; a job of one rank needs no network and every call
/// returns at once.
///
/// All ranks must make the same calls in the same order, with tensors of the same shape and dtype;
/// a group is used by one thread. Tensors are contiguous and on the CPU or this rank's GPU
/// (InternalError otherwise); work on a GPU's tensor follows what torch's current stream holds, and
/// `wait` makes that stream wait. When a rank dies or stays silent for `timeout_s`, every other
/// rank throws CommError naming the call and the missing rank. They throw within milliseconds of
/// each other, since whoever notices first closes its connections. The group is then unusable, and
/// every later call throws again. Making a group of several ranks sets SIGPIPE to ignored where it
/// has its default action (a dead peer would end this rank). The same world size and calls give the
/// same bits; sums over another world size differ by rounding.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Sum over ranks, in place and in the tensor's dtype: float64, float32, bfloat16, float16,
  /// int64, int32, int8 or uint8.
  virtual void all_reduce(at::Tensor& tensor) = 0;

  /// A running all-reduce; `wait` blocks until the tensor holds the sum. Bytes on the wire a rank:
  /// 2 (n-1)/n of the tensor's.
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;
  };
  virtual std::unique_ptr<Work> all_reduce_async(at::Tensor tensor) = 0;

  /// Sum over ranks, one part to each rank. tensor (n c), dtypes as in all_reduce. After `wait`
  /// elements [rank() c, (rank() + 1) c) hold the sum, and the others are undefined. InternalError
  /// if the ranks do not divide the elements. In place; each rank sends at most the tensor's bytes.
  /// Gloo: one reduce to each rank, since c10d's reduce-scatter for Gloo all-reduces a copy.
  virtual std::unique_ptr<Work> reduce_scatter_async(at::Tensor tensor) = 0;

  virtual void broadcast(at::Tensor& tensor, int root) = 0;  ///< any dtype
  virtual std::vector<at::Tensor> all_gather(
      const at::Tensor& tensor) = 0;  ///< any dtype; result[r] is rank r's, a copy
  virtual void barrier() = 0;

  /// Rows to and from every rank: rows [send[0] + ... + send[r-1], ... + send[r]) of `input` arrive
  /// on rank r, which finds them in its `output` after those of all lower ranks.
  ///
  /// input    (sum of send, ...), any dtype; output (sum of receive, ...), as input otherwise.
  /// Counts may be 0, also
  ///          all of them. receive[r] is rank r's send[rank()]: `exchange_sizes`
  ///          (comm/all_to_all.h) tells.
  /// Counts that disagree are not noticed here: Gloo ends the process.
  /// Every rank of the group calls it, also one without rows. Steps: 1, all pairs at once. Bytes
  /// sent: those of the rows for other ranks, in n - 1 messages.
  virtual std::unique_ptr<Work> all_to_all_async(at::Tensor output, const at::Tensor& input,
                                                 const std::vector<int64_t>& receive,
                                                 const std::vector<int64_t>& send) = 0;

  /// What all-to-alls cost this rank since the group was made, without the rows that stay here.
  struct Traffic {
    int64_t calls = 0, bytes_sent = 0, bytes_received = 0;
    double waited_s = 0;  ///< that this rank waited for them: communication that nothing hid
  };
  virtual Traffic all_to_all_traffic() const = 0;

  /// The group of those ranks of this one that stand in one of `parts` with this rank, in the order
  /// they stand there.
  ///
  /// All ranks of the group pass the same parts, in which each rank stands once (InternalError
  /// otherwise), and make the same splits in the same order. It has connections of its own, so its
  /// calls need no order with those of this group; one thread uses both. A failure in one of them
  /// ends all groups that come from one world, on every rank, and errors name ranks of the world.
  virtual std::shared_ptr<Group> split(const std::vector<std::vector<int>>& parts) = 0;
};

/// A failure of the network or of another rank: the command exits with 1 and torchrun may restart
/// the job.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct GroupOptions {
  double timeout_s =
      60;  ///< for connecting, and for each call from when all of its local predecessors are done
};

/// The world as torchrun describes it (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
/// TORCHELASTIC_RESTART_COUNT); a group of one when RANK is not set. GLOO_SOCKET_IFNAME chooses the
/// network interface; without it a job on one machine (LOCAL_WORLD_SIZE = WORLD_SIZE) uses
/// loopback, and a larger one the interface of the host's name. Throws UserError naming the
/// variable that is missing or wrong, CommError when the ranks do not find one another in time.
std::shared_ptr<Group> world_from_environment(const GroupOptions& options = {});

/// The ranks of a group that share this machine, and which of them this one is: torchrun's
/// LOCAL_WORLD_SIZE and LOCAL_RANK. Without them all ranks do, as threads of one process. UserError
/// for what is no number of ranks.
struct Neighbours {
  int rank = 0, size = 1;
};
Neighbours neighbours_of(const Group& group);

/// Whether torchrun started this job again, after a rank of it died.
bool restarted_by_torchrun();

/// `size` ranks as threads of this process, for tests: result[r] is rank r's group (Gloo over
/// loopback, hash store).
std::vector<std::shared_ptr<Group>> local_groups(int size, const GroupOptions& options = {});

/// Every rank's bytes, of any number; the result by rank. One call of all_gather where nobody has
/// more than `expected`, which is the same on all ranks, and otherwise another for the rest.
std::vector<std::string> all_gather_bytes(Group& group, std::string_view bytes,
                                          int64_t expected = 0);

/// All ranks throw CommError("<what>: rank r: <message>") if any rank passes a non-empty message;
/// all messages are in it.
void agree(Group& group, const std::string& what, const std::string& error_message);

}  // namespace dovetail
