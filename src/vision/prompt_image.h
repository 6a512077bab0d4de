// From a decoded picture to what an engine takes.
#pragma once

#include "percheron/engine.h"

#include "vision/canvas.h"
#include "vision/image.h"
#include "vision/patches.h"

namespace percheron::vision {

// How pictures are cut up for a model's vision part.
struct PictureFormat {
    CanvasRule canvas;
    PixelScale scale;
};

// The picture laid on `canvas`, which plan_canvas gave for its size.  The hash is SHA-256 of the
// canvas and of how its pixels are scaled; `first` is not set.
PromptImage prompt_image(const RgbImage& picture, const Canvas& canvas,
                         const PictureFormat& format);

}  // namespace percheron::vision
