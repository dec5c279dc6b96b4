"""The settings of a Spark session that change what ``where`` and ``orderingKey`` give.

Members of a group agree on them, see `coopconsume.group.agreement`. They are not fixed for the
evaluation: an expression means what it means elsewhere in its session, and the frames of ``poll``
belong to that session, which the library never changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from coopconsume.classic import is_classic
from coopconsume.errors import SessionUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from coopconsume.options import Options

_ZONE: Final = "spark.sql.session.timeZone"
#: Names of one time zone: which one a JVM has by default depends on its host.
_UTC: Final = frozenset(
    {"UTC", "Etc/UTC", "GMT", "Etc/GMT", "UCT", "Etc/UCT", "Zulu", "Z", "+00:00"}
)
#: Between two settings; none has it.
_BETWEEN: Final = "\x1e"
_FALSE: Final = """
ansi.doubleQuotedIdentifiers ansi.enforceReservedKeywords ansi.relationPrecedence caseSensitive
charAsVarchar function.concatBinaryAsString function.eltOutputAsString parser.escapedStringLiterals
parser.quotedRegexColumnNames preserveCharVarcharTypeInfo variant.allowDuplicateKeys
legacy.allowHashOnMapType legacy.allowNegativeScaleOfDecimal
legacy.allowNullComparisonResultInArraySort legacy.allowZeroIndexInFormatString legacy.bangEqualsNot
legacy.castComplexTypesToString.enabled legacy.charVarcharAsString legacy.codingErrorAction
legacy.collationAwareHashFunctions legacy.consecutiveStringLiterals.enabled
legacy.createEmptyCollectionUsingStringType legacy.decimal.retainFractionDigitsOnTruncate
legacy.disableMapKeyNormalization legacy.doLooseUpcast legacy.duplicateBetweenInput
legacy.earlyEvalCurrentTime legacy.exponentLiteralAsDecimal.enabled
legacy.fromDayTimeString.enabled legacy.identifierClause legacy.inSubqueryNullability
legacy.interval.enabled legacy.javaCharsets legacy.json.allowEmptyString.enabled
legacy.lpadRpadAlwaysReturnString legacy.negativeIndexInArrayInsert legacy.noCharPaddingInPredicate
legacy.parameterSubstitution.constantsOnly legacy.persistentCatalogFirst
legacy.raiseErrorWithoutErrorClass legacy.respectNullabilityInTextDatasetConversion
legacy.truncateForEmptyRegexSplit legacy.typeCoercion.datetimeToString.enabled
legacy.useLegacyXMLParser timeType.enabled
"""
_TRUE: Final = """
ansi.enabled csv.parser.columnPruning.enabled decimalOperations.allowPrecisionLoss
icu.caseMappings.enabled json.enableExactStringParsing json.enablePartialResults
jsonGenerator.ignoreNullFields jsonGenerator.writeNullIfWithDefaultValue
legacy.followThreeValuedLogicInArrayExists legacy.literal.pickMinimumPrecision legacy.sizeOfNull
optimizer.enableCsvExpressionOptimization optimizer.enableJsonExpressionOptimization
variant.validateUnicodeInJsonParsing xml.variant.respectInferSchema
"""
_OTHERS: Final = {
    "columnNameOfCorruptRecord": "_corrupt_record",
    "functionResolution.sessionOrder": "second",
    "legacy.csv.enableDateTimeParsingFallback": "",
    "legacy.json.enableDateTimeParsingFallback": "",
    "legacy.nullInEmptyListBehavior": "",
    "legacy.timeParserPolicy": "CORRECTED",
    "mapKeyDedupPolicy": "EXCEPTION",
    "timestampType": "TIMESTAMP_LTZ",
}
#: The settings but the time zone, with Spark's defaults.
SETTINGS: Final = {
    f"spark.sql.{name}": default
    for names, default in ((_FALSE, "false"), (_TRUE, "true"))
    for name in names.split()
} | {f"spark.sql.{name}": default for name, default in _OTHERS.items()}


def session_settings(spark: SparkSession) -> str:
    """Returns the time zone of a session, and settings that are not as Spark has them by default.

    Equal texts mean that an expression gives the same. A setting that this version of Spark does
    not know has its default.
    """
    return ", ".join(f"{name}={value}" for name, value in _unusual(spark))


def _unusual(spark: SparkSession) -> Iterator[tuple[str, str]]:
    known = _known(spark)
    zone = spark.conf.get(_ZONE) or ""
    yield _ZONE, "UTC" if zone in _UTC else zone
    for name, default in sorted(SETTINGS.items()):
        value = known.get(name, default)
        # Names of columns have cases, values of other settings have none.
        if value.lower() != default.lower():
            yield name, value if name.endswith("CorruptRecord") else value.lower()


def _known(spark: SparkSession) -> dict[str, str]:
    """Returns the settings that were made, in two calls: ``conf.getAll`` of a JVM has two each."""
    if not is_classic(spark):
        return spark.conf.getAll
    text = str(spark.conf._jconf.getAll().mkString(_BETWEEN))  # noqa: SLF001 - no public way
    return dict(one.partition(" -> ")[::2] for one in text.split(_BETWEEN))


def with_session_settings(spark: SparkSession, options: Options) -> Options:
    """Returns options with the settings of a session, if they have expressions."""
    if options.record_filter.where is None and options.ordering_key is None:
        return options
    return replace(options, expression_settings=session_settings(spark))


def check_session_settings(spark: SparkSession, options: Options) -> None:
    """Makes sure that expressions give what they gave when the consumer was made.

    Raises:
        SessionUnusable: Settings of the session were changed since.
    """
    if options.expression_settings is None:
        return
    now = session_settings(spark)
    if now != options.expression_settings:
        raise SessionUnusable(
            f"its settings were changed from {options.expression_settings} to {now}, and "
            "where or orderingKey may give something else with them: set them back, or stop all "
            "members of the group and make consumers with the new ones"
        )
