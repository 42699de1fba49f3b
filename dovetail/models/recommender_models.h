#pragma once

#include "dovetail/models/recommender.h"

/// The models of make_recommender, a file each.
namespace dovetail {

/// wide_deep  Cheng et al. 2016: a linear model of all features plus the deep part of dense
/// features and embeddings. deepfm     Guo et al. 2017: a linear model of the sparse features, the
/// inner products of all pairs of embeddings,
///            and the deep part. Dense features go to the deep part.
/// dlrm       Naumov et al. 2019: the dense features as one more embedding, the inner products of
/// all pairs, and a
///            tower on both.
/// dcnv2      Wang et al. 2021: x_(l+1) = x_0 * (W_l x_l + b_l) + x_l over dense features and
/// embeddings, W_l = U V of
///            `cross_rank`.
std::shared_ptr<Recommender> make_interaction(const RecommenderConfig& config,
                                              const RecommenderInputs& inputs, c10::Device device);

/// din: Zhou et al. 2018 (arXiv 1706.06978). With e_t the embeddings of event t side by side, v the
/// candidate's in the tables that sequences share, and e'_t those columns of e_t: a_t = f([v, e_t,
/// v - e'_t, v * e'_t]), f the local activation unit (layers with PReLU, one output), and the
/// interest sum_t a_t e_t, whose weights no softmax makes sum to 1. The deep part reads it beside
/// dense features and embeddings.
std::shared_ptr<Recommender> make_din(const RecommenderConfig& config,
                                      const RecommenderInputs& inputs, c10::Device device);

/// dien: Zhou et al. 2019 (arXiv 1809.03672). A GRU over the events gives h_t; a_t = softmax_t(h_t
/// W v); an AUGRU over h_t, a GRU whose update gate is a_t u_t, gives the interest in its last
/// state. The deep part reads it beside dense features, embeddings and the sum of the events. The
/// auxiliary loss of a sample is 1 / (length - 1) times the sum over events from the second on of
/// -log p(h_(t-1), e_t) - log(1 - p(h_(t-1), n_t)), n_t an event of another sample.
std::shared_ptr<Recommender> make_dien(const RecommenderConfig& config,
                                       const RecommenderInputs& inputs, c10::Device device);

/// can: Bian et al. 2022 (arXiv 2011.05625). A co-action is the sum over events of an MLP whose
/// weights and biases are a row of the item's own table, tanh between its layers, applied to the
/// powers 1 to `orders` of a row of the event's own table; the outputs of all its layers side by
/// side. The deep part reads all co-actions beside dense features, embeddings and the sums of the
/// sequences.
std::shared_ptr<Recommender> make_can(const RecommenderConfig& config,
                                      const RecommenderInputs& inputs, c10::Device device);

/// mmoe: Ma et al. 2018. For task k the tower of sum_i softmax(G_k x)_i f_i(x), x dense features
/// and embeddings, f_i the experts that all tasks share.
std::shared_ptr<Recommender> make_mmoe(const RecommenderConfig& config,
                                       const RecommenderInputs& inputs, c10::Device device);

/// Linears of models: with a bias, and quantized where a recipe says so; the head, of one output,
/// is not.
std::shared_ptr<Linear> tower_linear(int64_t in, int64_t out, const std::string& name,
                                     c10::Device device, bool bias = true);
std::shared_ptr<Linear> head_linear(int64_t in, const std::string& name, c10::Device device);

/// The features that the targeted sequences share a table with, side by side: (B, targets * dim) of
/// `features`, as Recommender::features gives them.
at::Tensor candidate_of(const RecommenderConfig& config, const RecommenderInputs& inputs,
                        const at::Tensor& features);
int64_t num_targets(const RecommenderInputs& inputs);

}  // namespace dovetail
