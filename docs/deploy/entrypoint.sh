#!/usr/bin/env bash
# Runs a command of coopconsume or, if Spark asks for one by the word "executor", an executor.
# Spark's Kubernetes scheduler gives executors what they need in environment variables.
set -euo pipefail

if [ "${1:-}" != executor ]; then
    exec python -m coopconsume "$@"
fi

home=$(python -c 'from importlib.util import find_spec as f; print(*f("pyspark").submodule_search_locations)')
options=()
for name in $(compgen -A variable SPARK_JAVA_OPT_ | sort -V); do
    options+=("${!name}")
done
# What spark.executor.extraClassPath names is first on the class path, as in all of Spark.
exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$home/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
