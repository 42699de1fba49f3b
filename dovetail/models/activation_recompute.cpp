#include "dovetail/models/activation_recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::models {

namespace {

struct BlockHolder : torch::CustomClassHolder {
  BlockHolder(std::shared_ptr<Block> held, moe::Pass held_pass)
      : block(std::move(held)), pass(std::move(held_pass)) {}
  std::shared_ptr<Block> block;
  moe::Pass pass;
};

class CheckpointedBlock : public torch::autograd::Function<CheckpointedBlock> {
 public:
  /// Returns {x} or {x, router_loss}.
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& x_btc,
                                                const std::shared_ptr<Block>& block,
                                                const moe::Pass& pass) {
    context->save_for_backward({x_btc});
    context->saved_data["block"] =
        c10::IValue::make_capsule(c10::make_intrusive<BlockHolder>(block, pass));
    return outputs(block->forward(x_btc, pass));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto holder =
        c10::static_intrusive_pointer_cast<BlockHolder>(context->saved_data["block"].toCapsule());
    const auto x_btc = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::variable_list recomputed;
    moe::Pass pass = holder->pass;
    pass.again = true;
    {
      const at::AutoGradMode with_grad(true);
      recomputed = outputs(holder->block->forward(x_btc, pass));
    }
    // Accumulates into the parameters' .grad and thereby runs their hooks, as the outer backward
    // would.
    torch::autograd::backward(recomputed, gradients);
    return {x_btc.grad(), at::Tensor(), at::Tensor()};
  }

 private:
  static torch::autograd::variable_list outputs(const BlockOutput& block) {
    if (!block.router_loss.defined()) return {block.x};
    return {block.x, block.router_loss};
  }
};

}  // namespace

BlockOutput checkpointed_forward(const std::shared_ptr<Block>& block, const at::Tensor& x_btc,
                                 const moe::Pass& pass) {
  DOVETAIL_CHECK(x_btc.requires_grad(), "the input of a checkpointed block has no gradient");
  const torch::autograd::variable_list made = CheckpointedBlock::apply(x_btc, block, pass);
  return {made[0], made.size() > 1 ? made[1] : at::Tensor()};
}

}  // namespace dovetail::models
