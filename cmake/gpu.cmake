# Device code is data: compiled by glslc and nvcc, put into the program by .incbin, found by name at run time. The lists are
# src/device/vulkan/shaders/shaders.def and src/device/cuda/kernels/kernels.def.
#   MERE_VULKAN  AUTO (where glslc is found), ON, OFF
#   MERE_CUDA    AUTO (where nvcc is found), ON, OFF
# Without them the backends are there and say what the program was built without; the configure step says so too.
set(MERE_VULKAN AUTO CACHE STRING "embed Vulkan shaders: AUTO, ON, OFF")
set(MERE_CUDA AUTO CACHE STRING "embed CUDA kernels: AUTO, ON, OFF")
# The targets of the CUDA kernels, each as nvcc -gencode takes it: one binary and PTX for everything else from Turing on, or (preset
# release-wide) a binary for every architecture, so that nothing is compiled when the program starts.
set(cuda_default "arch=compute_90a,code=sm_90a" "arch=compute_75,code=compute_75")
set(cuda_wide "arch=compute_75,code=sm_75" "arch=compute_80,code=sm_80" "arch=compute_86,code=sm_86" "arch=compute_89,code=sm_89"
    "arch=compute_90a,code=sm_90a" "arch=compute_100,code=sm_100" "arch=compute_120,code=sm_120"
    "arch=compute_75,code=compute_75" "arch=compute_120,code=compute_120")
set(MERE_CUDA_CODE default CACHE STRING "targets of the CUDA kernels: default, wide, or nvcc -gencode arguments (docs/gpu.md)")
option(MERE_CUDA_LINEINFO "line numbers in CUDA kernels, for profilers" OFF)
set(gpu_cache "${CMAKE_SOURCE_DIR}/build/gpu-cache")
if(DEFINED ENV{MERE_GPU_CACHE})
    set(gpu_cache "$ENV{MERE_GPU_CACHE}")
endif()
set(MERE_GPU_CACHE "${gpu_cache}" CACHE STRING
    "compiled CUDA kernels that all build directories share (scripts/nvcc-cached.sh); empty: none")

function(mere_embed out symbol file)
    file(GENERATE OUTPUT "${out}" CONTENT
"    .section .rodata
    .global ${symbol}
    .global ${symbol}_end
    .balign 64
${symbol}:
    .incbin \"${file}\"
${symbol}_end:
    .byte 0
    .section .note.GNU-stack,\"\",%progbits
")
    set_source_files_properties("${out}" PROPERTIES OBJECT_DEPENDS "${file}" GENERATED TRUE LANGUAGE ASM)
endfunction()

set(gpu_out "${CMAKE_BINARY_DIR}/gpu")
file(MAKE_DIRECTORY "${gpu_out}")

find_program(GLSLC NAMES glslc)
if(MERE_VULKAN STREQUAL "ON" AND NOT GLSLC)
    message(FATAL_ERROR "MERE_VULKAN is ON and there is no glslc (Debian: glslc)")
endif()
set(shaders_def "${CMAKE_SOURCE_DIR}/src/device/vulkan/shaders/shaders.def")
find_path(VULKAN_HEADERS vulkan/vulkan_core.h)
if(MERE_VULKAN STREQUAL "ON" AND NOT VULKAN_HEADERS)
    message(FATAL_ERROR "MERE_VULKAN is ON and there are no Vulkan headers (Debian: libvulkan-dev)")
endif()
if(GLSLC AND VULKAN_HEADERS AND NOT MERE_VULKAN STREQUAL "OFF")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${shaders_def}")
    file(STRINGS "${shaders_def}" lines REGEX "^SHADER\\(")
    foreach(line ${lines})
        string(REGEX MATCH "^SHADER\\(([a-z0-9_]+), *([a-z0-9_]+)(, *(.*))?\\)" _ "${line}")
        set(name ${CMAKE_MATCH_1})
        set(source "${CMAKE_SOURCE_DIR}/src/device/vulkan/shaders/${CMAKE_MATCH_2}.comp")
        separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_4}")
        set(spv "${gpu_out}/${name}.spv")
        add_custom_command(OUTPUT "${spv}" DEPENDS "${source}" DEPFILE "${spv}.d" VERBATIM
            COMMAND ${GLSLC} --target-env=vulkan1.3 -O -I "${CMAKE_SOURCE_DIR}/src/device/gpu" ${flags} -MD -MF "${spv}.d" -o "${spv}" "${source}")
        mere_embed("${gpu_out}/${name}.spv.S" "mere_spv_${name}" "${spv}")
        target_sources(mere_device PRIVATE "${gpu_out}/${name}.spv.S")
    endforeach()
    set(with_vulkan 1)
endif()
if(NOT with_vulkan)
    if(MERE_VULKAN STREQUAL "OFF")
        message(STATUS "Vulkan: left out (MERE_VULKAN=OFF)")
    else()
        message(NOTICE "-- Vulkan: left out; it needs glslc and the Vulkan headers (Debian: glslc libvulkan-dev)")
    endif()
endif()
# Without shaders or headers the backend is vk_none.c alone.
file(GLOB vulkan_off CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/device/vulkan/*.c")
if(with_vulkan)
    set(vulkan_off "${CMAKE_SOURCE_DIR}/src/device/vulkan/vk_none.c")
else()
    list(REMOVE_ITEM vulkan_off "${CMAKE_SOURCE_DIR}/src/device/vulkan/vk_none.c")
endif()
set_source_files_properties(${vulkan_off} PROPERTIES HEADER_FILE_ONLY TRUE)
target_link_libraries(mere_device PUBLIC ${CMAKE_DL_LIBS})
target_compile_definitions(mere_device PRIVATE MERE_WITH_VULKAN=$<BOOL:${with_vulkan}>)

find_program(NVCC NAMES nvcc HINTS /usr/local/cuda/bin)
if(MERE_CUDA STREQUAL "ON" AND NOT NVCC)
    message(FATAL_ERROR "MERE_CUDA is ON and there is no nvcc")
endif()
set(kernels_def "${CMAKE_SOURCE_DIR}/src/device/cuda/kernels/kernels.def")
if(NVCC AND NOT MERE_CUDA STREQUAL "OFF")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${kernels_def}")
    file(STRINGS "${kernels_def}" lines REGEX "^KERNELS\\(")
    set(code ${MERE_CUDA_CODE})
    if(MERE_CUDA_CODE STREQUAL "default")
        set(code ${cuda_default})
    elseif(MERE_CUDA_CODE STREQUAL "wide")
        set(code ${cuda_wide})
    endif()
    list(TRANSFORM code PREPEND "-gencode=" OUTPUT_VARIABLE gencode)
    set(nvcc_flags -fatbin -std=c++17 -O3 -Werror all-warnings $<$<BOOL:${MERE_CUDA_LINEINFO}>:-lineinfo> ${gencode})
    foreach(line ${lines})
        string(REGEX MATCH "^KERNELS\\(([a-z0-9_]+)\\)" _ "${line}")
        set(name ${CMAKE_MATCH_1})
        set(source "${CMAKE_SOURCE_DIR}/src/device/cuda/kernels/${name}.cu")
        set(fatbin "${gpu_out}/${name}.fatbin")
        add_custom_command(OUTPUT "${fatbin}" DEPENDS "${source}" "${CMAKE_SOURCE_DIR}/scripts/nvcc-cached.sh" DEPFILE "${fatbin}.d"
            VERBATIM COMMAND_EXPAND_LISTS
            COMMAND sh "${CMAKE_SOURCE_DIR}/scripts/nvcc-cached.sh" "${MERE_GPU_CACHE}" "${NVCC}" "${source}" "${fatbin}"
                "${CMAKE_SOURCE_DIR}/src/device/gpu" ${nvcc_flags})
        mere_embed("${gpu_out}/${name}.fatbin.S" "mere_fatbin_${name}" "${fatbin}")
        target_sources(mere_device PRIVATE "${gpu_out}/${name}.fatbin.S")
    endforeach()
    set(with_cuda 1)
else()
    if(MERE_CUDA STREQUAL "OFF")
        message(STATUS "CUDA: left out (MERE_CUDA=OFF)")
    else()
        message(NOTICE "-- CUDA: left out; it needs nvcc")
    endif()
endif()
target_compile_definitions(mere_device PRIVATE MERE_WITH_CUDA=$<BOOL:${with_cuda}>)
