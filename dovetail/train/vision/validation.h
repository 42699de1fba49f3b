#pragma once

#include <cstdint>
#include <functional>

#include "dovetail/comm/group.h"
#include "dovetail/data/images/image_loader.h"
#include "dovetail/models/vision.h"
#include "dovetail/train/metrics/validation.h"

namespace dovetail::train {

/// Measures a vision model on samples 0 to `samples` - 1, over all ranks; all call this together.
/// `read(begin, end)` returns samples [begin, end). A forward pass has at most `batch` samples. The
/// model is in evaluation mode meanwhile.
///
/// Accuracy is the share of targets (images or pixels) whose class has the largest logit. The mean
/// intersection over union of masks is over all classes that occur in targets or predictions
/// (Everingham et al. 2010).
Validation validate(models::VisionModel& model, int64_t samples, int64_t batch,
                    const std::function<data::ImageBatch(int64_t begin, int64_t end)>& read,
                    comm::Group& group);

}  // namespace dovetail::train
