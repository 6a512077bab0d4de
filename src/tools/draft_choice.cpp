#include "tools/draft_choice.h"

namespace percheron::tools {

Result<draft::DraftOptions> choose_drafting(const DraftWish& wish, bool has_mtp) {
    const std::string& name = wish.proposer;
    if (name != "auto" && name != "off" && name != "mtp" && name != "copy" && name != "dflash2") {
        return Error(ErrorCode::invalid_argument,
                     "--draft " + name + " is unknown; use auto, mtp, dflash2, copy or off");
    }
    if (name == "dflash2" && wish.model.empty()) {
        return Error(ErrorCode::invalid_argument,
                     "--draft dflash2 needs the drafter's folder: --draft-model DIR");
    }
    if (name != "dflash2" && name != "auto" && !wish.model.empty()) {
        return Error(ErrorCode::invalid_argument,
                     "--draft-model is the folder of a dflash2 "
                     "drafter, but --draft is " +
                         name);
    }
    draft::DraftOptions options;
    if (name == "off") {
        if (wish.depth) {
            return Error(ErrorCode::invalid_argument,
                         "--draft-depth needs a proposer, but --draft is off");
        }
        return options;
    }
    if (wish.depth && (*wish.depth < 1 || *wish.depth > deepest_draft)) {
        return Error(ErrorCode::invalid_argument,
                     "--draft-depth is auto or 1 to " + std::to_string(deepest_draft));
    }
    if (name == "mtp" && !has_mtp) {
        return Error(ErrorCode::unsupported,
                     "--draft mtp needs an MTP layer in the model's files and a device that "
                     "computes it; take copy or off");
    }
    options.dflash2 = !wish.model.empty();
    // One of the two that take time: a drafter that was named goes before the model's own layer.
    options.mtp = name == "mtp" || (name == "auto" && has_mtp && !options.dflash2);
    options.copy = name == "auto" || name == "copy";
    options.adaptive = !wish.depth;
    options.depth = wish.depth.value_or(deepest_adaptive_draft);
    return options;
}

}  // namespace percheron::tools
