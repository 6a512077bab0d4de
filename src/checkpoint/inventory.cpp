#include "checkpoint/inventory.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "ops/weight_matrix.h"

namespace percheron::checkpoint {
namespace {

bool is_digit(char letter) {
    return letter >= '0' && letter <= '9';
}

// Names that differ in their numbers only.
struct NameFamily {
    std::vector<std::string> between;            // texts around the numbers, one more of them
    std::vector<std::set<std::string>> numbers;  // at each place
    std::size_t count = 0;

    static NameFamily of(const std::string& name) {
        NameFamily family;
        family.between.emplace_back();
        for (std::size_t i = 0; i < name.size();) {
            if (!is_digit(name[i])) {
                family.between.back() += name[i++];
                continue;
            }
            const std::size_t end = std::min(name.find_first_not_of("0123456789", i), name.size());
            family.numbers.push_back({name.substr(i, end - i)});
            family.between.emplace_back();
            i = end;
        }
        family.count = 1;
        return family;
    }

    void add(const NameFamily& one) {
        for (std::size_t i = 0; i < numbers.size(); ++i)
            numbers[i].insert(one.numbers[i].begin(), one.numbers[i].end());
        ++count;
    }

    std::string text() const {
        std::string name = between.front();
        std::size_t combinations = 1;
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            name += list_of(numbers[i]) + between[i + 1];
            combinations *= numbers[i].size();
        }
        if (combinations != count)
            name.append(" (").append(std::to_string(count)).append(" of these)");
        return name;
    }

    // "7", or "{0,3-5}".
    static std::string list_of(const std::set<std::string>& numbers) {
        if (numbers.size() == 1) return *numbers.begin();
        std::set<std::uint64_t> values;
        for (const std::string& number : numbers) {
            // Numbers of names that are checked are counts; of nothing longer is a run made.
            values.insert(number.size() < 10 ? std::stoull(number) : ~std::uint64_t{0});
        }
        std::string text = "{";
        for (auto first = values.begin(); first != values.end();) {
            auto last = first;
            while (std::next(last) != values.end() && *std::next(last) == *last + 1)
                ++last;
            if (first != values.begin()) text += ',';
            text += std::to_string(*first);
            if (last != first) text.append("-").append(std::to_string(*last));
            first = std::next(last);
        }
        text += '}';
        return text;
    }
};

}  // namespace

std::vector<std::string> folded_names(const std::vector<std::string>& names) {
    std::vector<NameFamily> families;
    for (const std::string& name : names) {
        NameFamily one = NameFamily::of(name);
        const auto place =
            std::find_if(families.begin(), families.end(),
                         [&](const NameFamily& family) { return family.between == one.between; });
        if (place == families.end()) {
            families.push_back(std::move(one));
        } else {
            place->add(one);
        }
    }
    std::vector<std::string> lines;
    lines.reserve(families.size());
    for (const NameFamily& family : families)
        lines.push_back(family.text());
    return lines;
}

std::string sentence(const Disagreement& disagreement) {
    const std::size_t count = disagreement.weights.size();
    std::string text = disagreement.config + ": " + std::to_string(count) +
                       (count == 1 ? " weight " : " weights ");
    text += disagreement.what + ": ";
    const char* comma = "";
    for (const std::string& name : folded_names(disagreement.weights)) {
        text += comma + name;
        comma = ", ";
    }
    return text + "; the files decide";
}

bool is_unquantised(std::string_view form) {
    return form == ops::name_of(ops::WeightFormat::bf16) ||
           form == ops::name_of(ops::WeightFormat::f32) || form == "f16";
}

std::string summary(const Inventory& inventory) {
    std::size_t total = 0;
    std::size_t quantised = 0;
    std::string kinds;
    for (const auto& [format, tally] : inventory.formats) {
        total += tally.tensors;
        if (is_unquantised(format)) continue;
        quantised += tally.tensors;
        kinds += (kinds.empty() ? " (" : ", ") + std::to_string(tally.tensors) + " " + format;
    }
    if (!kinds.empty()) kinds += ")";
    return std::to_string(total) + " tensors: " + std::to_string(quantised) + " quantised" + kinds +
           ", " + std::to_string(inventory.ignored.size()) + " ignored by quantization_config, " +
           std::to_string(inventory.unclassified.size()) + " unclassified; MTP " +
           (inventory.mtp ? "found" : "not found") + ", vision " +
           (inventory.vision ? "found" : "not found");
}

}  // namespace percheron::checkpoint
