// Random matrices in every weight format, random rows, and what the tests of this room share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "core/thread_pool.h"
#include "core/views.h"
#include "ops/cpu/cpu_primitives.h"
#include "ops/cpu/levels.h"
#include "ops/weight_matrix.h"

namespace percheron::ops {

class Random {
  public:
    explicit Random(std::uint32_t seed) : engine_(seed) {}

    std::size_t between(std::size_t low, std::size_t high) {
        return low + engine_() % (high - low + 1);
    }
    float normal(float deviation = 1.0f) {
        return std::normal_distribution<float>(0, deviation)(engine_);
    }
    std::vector<float> floats(std::size_t count, float deviation = 1.0f) {
        std::vector<float> values(count);
        for (float& value : values)
            value = normal(deviation);
        return values;
    }
    std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }

  private:
    std::mt19937 engine_;
};

// A matrix that owns its bytes.
struct StoredMatrix {
    std::vector<std::uint8_t> data, scales;
    WeightMatrix view;
};

inline StoredMatrix random_matrix(Random& random, WeightFormat format, std::size_t n,
                                  std::size_t k) {
    StoredMatrix m;
    const auto fill = [](std::vector<std::uint8_t>& bytes, auto values) {
        bytes.resize(values.size() * sizeof(values[0]));
        std::memcpy(bytes.data(), values.data(), bytes.size());
    };
    const float deviation = 1.0f / std::sqrt(static_cast<float>(k));
    const auto bf16 = [](const std::vector<float>& values) {
        std::vector<BFloat16> rounded;
        for (float value : values)
            rounded.emplace_back(value);
        return rounded;
    };
    const auto scales_of = [&](std::size_t count, float around) {
        std::vector<float> values(count);
        for (float& value : values)
            value = around * (0.5f + static_cast<float>(random.between(0, 1000)) / 1000.0f);
        return values;
    };
    switch (format) {
        case WeightFormat::f32:
            fill(m.data, random.floats(n * k, deviation));
            break;
        case WeightFormat::bf16:
            fill(m.data, bf16(random.floats(n * k, deviation)));
            break;
        case WeightFormat::fp8_block: {
            // Every code, subnormals and zeros included, but not NaN.
            m.data.resize(n * k);
            for (std::uint8_t& code : m.data)
                do
                    code = static_cast<std::uint8_t>(random.bits());
                while ((code & 0x7f) == 0x7f);
            fill(m.scales, scales_of((n + 127) / 128 * ((k + 127) / 128), deviation / 64));
            break;
        }
        case WeightFormat::w4a16:
            m.data.resize(n * k / 2);
            for (std::uint8_t& pair : m.data)
                pair = static_cast<std::uint8_t>(random.bits());
            fill(m.scales, bf16(scales_of(n * (k / 128), deviation / 4)));
            break;
        case WeightFormat::nvfp4: {
            m.data.resize(n * k / 2);
            for (std::uint8_t& pair : m.data)
                pair = static_cast<std::uint8_t>(random.bits());
            std::vector<Float8E4M3> scales;
            for (float value : scales_of(n * (k / 16), 1.0f))
                scales.emplace_back(value);
            fill(m.scales, scales);
            m.view.global_scale = deviation;
            break;
        }
    }
    m.view.format = format;
    m.view.n = n;
    m.view.k = k;
    m.view.data = m.data.data();
    m.view.scales = m.scales.empty() ? nullptr : m.scales.data();
    return m;
}

// k that a format can store.
inline std::size_t storable_width(WeightFormat format, std::size_t k) {
    const std::size_t multiple = format == WeightFormat::w4a16   ? 128
                                 : format == WeightFormat::nvfp4 ? 16
                                                                 : 1;
    return (k + multiple - 1) / multiple * multiple;
}

inline Rows<float> rows_of(std::vector<float>& values, std::size_t columns) {
    return Rows<float>(values.data(), values.size() / columns, columns);
}

inline testing::AssertionResult bits_equal(const std::vector<float>& a,
                                           const std::vector<float>& b) {
    if (a.size() != b.size()) return testing::AssertionFailure() << "sizes differ";
    for (std::size_t i = 0; i < a.size(); ++i)
        if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
            return testing::AssertionFailure()
                   << "element " << i << ": " << a[i] << " and " << b[i];
    return testing::AssertionSuccess();
}

// |a - b| <= tolerance * root mean square of b, everywhere.
inline testing::AssertionResult close(const std::vector<float>& a, const std::vector<float>& b,
                                      double tolerance) {
    if (a.size() != b.size()) return testing::AssertionFailure() << "sizes differ";
    double squares = 0;
    for (float value : b)
        squares += static_cast<double>(value) * value;
    const double scale =
        std::sqrt(squares / static_cast<double>(std::max<std::size_t>(b.size(), 1)));
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (!(std::abs(static_cast<double>(a[i]) - b[i]) <= tolerance * (scale + 1e-30)))
            return testing::AssertionFailure() << "element " << i << ": " << a[i] << " instead of "
                                               << b[i] << ", RMS " << scale;
    }
    return testing::AssertionSuccess();
}

// The CPU's primitives at one level with some threads.
struct CpuOps {
    explicit CpuOps(std::string_view level, std::size_t threads = 2)
        : pool({.threads = threads}), ops(*cpu::choose_level(level).value(), pool) {}
    ThreadPool pool;
    cpu::CpuPrimitives ops;
};

inline std::vector<std::string> levels() {
    std::vector<std::string> names;
    for (std::string_view name : cpu::available_levels())
        names.emplace_back(name);
    return names;
}

}  // namespace percheron::ops
