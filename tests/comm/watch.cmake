# Flight recorder, watchdog, core binding: in one process, and under a launcher.
foreach(name flight_recorder_test binding_test two_level_test)
  thinwire_test(${name} ${CMAKE_CURRENT_LIST_DIR}/${name}.cpp LINK local_world)
endforeach()
foreach(name keeper_test watchdog_test)
  thinwire_test(${name} ${CMAKE_CURRENT_LIST_DIR}/${name}.cpp LINK thinwire_parallel TIMING)
endforeach()

if(thinwire_launch)
  add_executable(watch_rank ${CMAKE_CURRENT_LIST_DIR}/watch_rank.cpp)
  target_link_libraries(watch_rank PRIVATE thinwire_parallel MPI::MPI_CXX thinwire_options thinwire_warnings)
  target_compile_options(watch_rank PRIVATE ${THINWIRE_COLD})
  set_target_properties(watch_rank PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  # Timed, and MPI libraries do not run clean under sanitizers: not among the fast ones.
  add_test(NAME watchdog_mpi_test
    COMMAND ${CMAKE_CURRENT_LIST_DIR}/watchdog_mpi_test.sh $<TARGET_FILE:watch_rank> ${thinwire_launch})
  set_tests_properties(watchdog_mpi_test PROPERTIES LABELS "slow;timing" TIMEOUT 1800 RUN_SERIAL ON)
endif()
