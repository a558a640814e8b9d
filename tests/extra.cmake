# The programs that break things: fuzzing, mutants, and thread slices under the thread sanitizer.

# Seconds of fuzzing in a test run; more on request: fa_fuzz seconds=600.
add_executable(fa_fuzz fa_fuzz.c)
target_link_libraries(fa_fuzz PRIVATE fa_harness -lm)
# One seed, so that a run fails for what changed; other seeds are for longer runs by hand.
add_test(NAME fa_fuzz COMMAND fa_fuzz seconds=15 seed=1)

if(FA_WITH_CUDA)
    add_test(NAME fa_case_cuda COMMAND fa_case --all device=cuda)
    add_test(NAME fa_fuzz_cuda COMMAND fa_fuzz seconds=15 device=cuda)
    # The exit status of a machine without a GPU (memory.h).
    set_tests_properties(fa_case_cuda fa_fuzz_cuda PROPERTIES SKIP_RETURN_CODE 77)
endif()

# What the objects hold and ask for; processors without AVX2, emulated.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    add_test(NAME objects COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/objects.py
             $<TARGET_FILE:fa_case> ${PROJECT_BINARY_DIR}/CMakeFiles/fa_kernels.dir
             ${PROJECT_BINARY_DIR}/CMakeFiles/fa_fwd_causal_shared.dir)
    set_tests_properties(objects PROPERTIES SKIP_RETURN_CODE 77)
endif()

# An engine's own threads; configure with -fsanitize=thread (preset tsan) to look for races.
find_package(Threads REQUIRED)
add_executable(fa_slices slices.c)
target_link_libraries(fa_slices PRIVATE fa_harness Threads::Threads)
add_test(NAME fa_slices COMMAND fa_slices)

# Streams, graphs, threads and failing launches on a GPU.
if(FA_WITH_CUDA)
    add_executable(fa_cuda_calls cuda_calls.c)
    target_link_libraries(fa_cuda_calls PRIVATE fa_harness CUDA::cudart_static Threads::Threads)
    add_test(NAME fa_cuda_calls COMMAND fa_cuda_calls seconds=5)
    set_tests_properties(fa_cuda_calls PROPERTIES SKIP_RETURN_CODE 77)
endif()

add_subdirectory(mutants)
add_subdirectory(adapters)

# Judges any library of this ABI, or a peer through an adapter: make conform LIBRARY=path.
add_executable(fa_conform fa_conform.c conform.c conform_report.c)
target_link_libraries(fa_conform PRIVATE fa_harness ${CMAKE_DL_LIBS} -lm)
