#include "tools/draft_choice.h"

namespace percheron::tools {

Result<draft::DraftOptions> choose_drafting(const DraftWish& wish, bool has_mtp, bool pays) {
    const std::string& name = wish.proposer;
    if (name == "dflash2") {
        return Error(ErrorCode::unsupported,
                     "--draft dflash2 is not built; take auto, mtp, copy or off");
    }
    if (name != "auto" && name != "off" && name != "mtp" && name != "copy") {
        return Error(ErrorCode::invalid_argument,
                     "--draft " + name + " is unknown; use auto, mtp, copy or off");
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
    options.mtp = name == "mtp" || (name == "auto" && has_mtp && pays);
    options.copy = name != "mtp";
    options.adaptive = !wish.depth;
    options.depth = wish.depth.value_or(deepest_adaptive_draft);
    return options;
}

}  // namespace percheron::tools
